// Bundle the extension into dist/, and with --tests the unit tests into out/.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";

const shared = { bundle: true, platform: "node", format: "cjs", target: "node20", external: ["vscode"], logLevel: "warning" };

if (process.argv.includes("--tests")) {
  const entryPoints = readdirSync("test").filter((name) => name.endsWith(".test.ts")).map((name) => `test/${name}`);
  await build({ ...shared, entryPoints, outdir: "out", sourcemap: "inline" });
} else {
  // The wheel is named and hashed here, so that the extension installs exactly what it was built with.
  const wheels = readdirSync("server").filter((name) => name.endsWith(".whl"));
  if (wheels.length !== 1) throw new Error(`server/ must hold one wheel, not ${wheels.length}; make vscode builds it`);
  const sha256 = createHash("sha256").update(readFileSync(`server/${wheels[0]}`)).digest("hex");
  const define = { WHEEL_NAME: JSON.stringify(wheels[0]), WHEEL_SHA256: JSON.stringify(sha256) };
  const packed = { ...shared, minify: true, legalComments: "eof" };
  await build({ ...packed, define, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js" });
  await build({ ...packed, entryPoints: ["src/web.ts"], outfile: "dist/web.js", platform: "browser", target: "es2022" });
}
