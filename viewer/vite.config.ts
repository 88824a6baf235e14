import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const OUTPUT = join(import.meta.dirname, "..", "src", "ingot", "viewer", "assets");

/** Writes which packages are in the bundle, with their licences, and refuses text that a page cannot hold in a script. */
function bundleChecks(): Plugin {
  return {
    name: "ingot-bundle-checks",
    apply: "build",
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const file of Object.values(bundle)) {
        if (file.type !== "chunk") continue;
        for (const id of Object.keys(file.modules)) {
          const found = /^.*\/node_modules\/(@[^/]+\/[^/]+|[^/]+)/.exec(id.replaceAll("\\", "/"));
          if (found) folders.add(found[0]);
        }
        const found = /<\/script|<!--/i.exec(file.code);
        if (found) this.error(`${file.fileName} has ${found[0]}, which ends or hides a script inside a page`);
      }
      const parts = [...folders].sort().map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
        const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
        if (!file) this.error(`${name} has no licence file in ${dirname(folder)}`);
        return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file!), "utf8").trim()}\n`;
      });
      const head = "app.js holds code of these packages. `make viewer` writes this file.\n\n";
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source: head + parts.join(`\n${"-".repeat(72)}\n\n`) });
    },
  };
}

export default defineConfig({
  plugins: [bundleChecks()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: OUTPUT,
    emptyOutDir: false,
    target: "es2022",
    cssCodeSplit: false,
    lib: { entry: "src/main.tsx", formats: ["iife"], name: "ingotView", fileName: () => "app.js", cssFileName: "app" },
    minify: true,
    reportCompressedSize: false,
  },
  worker: { format: "iife" },
});
