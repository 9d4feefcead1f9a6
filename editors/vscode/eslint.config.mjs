import js from "@eslint/js";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["dist", "out"] },
  { files: ["**/*.mjs"], ...js.configs.recommended, languageOptions: { globals: { process: "readonly", Buffer: "readonly" } } },
  {
    files: ["**/*.ts"],
    extends: [...ts.configs.strictTypeChecked, ...ts.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // A sentence reads best with its numbers in it.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    files: ["test/**/*.ts"],
    rules: {
      // node:test's own functions return promises that its runner waits for.
      "@typescript-eslint/no-floating-promises": "off",
    },
  },
);
