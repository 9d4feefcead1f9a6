// Bundle the extension into dist/, and with --tests the unit tests into out/.
import { build } from "esbuild";
import { readdirSync } from "node:fs";

const shared = { bundle: true, platform: "node", format: "cjs", target: "node20", external: ["vscode"], logLevel: "warning" };

if (process.argv.includes("--tests")) {
  const entryPoints = readdirSync("test").filter((name) => name.endsWith(".test.ts")).map((name) => `test/${name}`);
  await build({ ...shared, entryPoints, outdir: "out", sourcemap: "inline" });
} else {
  const packed = { ...shared, minify: true, legalComments: "eof" };
  await build({ ...packed, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js" });
  await build({ ...packed, entryPoints: ["src/web.ts"], outfile: "dist/web.js", platform: "browser", target: "es2022" });
}
