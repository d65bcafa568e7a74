// Bundles the page and copies the icons and fonts that Grafana's components fetch: `node build.mjs INTO`.
import { build } from 'esbuild';
import { cpSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';

const into = process.argv[2];
const modules = join(import.meta.dirname ?? new URL('.', import.meta.url).pathname, 'node_modules');

// Omits the code editor, which is most of the bundle, and which no panel uses.
const withoutEditor = {
  name: 'without-editor',
  setup(bundle) {
    bundle.onResolve({ filter: /^monaco-editor/ }, ({ path }) => ({ path, namespace: 'empty' }));
    bundle.onLoad({ filter: /.*/, namespace: 'empty' }, () => ({ contents: 'export default {}' }));
  },
};

// Node and the bundler disagree about the default export of this package in .mjs files, so this exports the right one.
const SCROLLBARS = 'react-custom-scrollbars-2';
const withScrollbars = {
  name: 'with-scrollbars',
  setup(bundle) {
    bundle.onResolve({ filter: new RegExp(`^${SCROLLBARS}$`) }, ({ path, namespace, resolveDir }) =>
      namespace === 'named' ? undefined : { path, namespace: 'named', pluginData: resolveDir });
    bundle.onLoad({ filter: /.*/, namespace: 'named' }, ({ pluginData }) =>
      ({ contents: `export { Scrollbars as default } from '${SCROLLBARS}'`, resolveDir: pluginData }));
  },
};

await build({
  entryPoints: [join(modules, '../src/page.tsx')],
  outfile: join(into, 'page.js'),
  bundle: true,
  format: 'iife',
  platform: 'browser',
  target: 'chrome120',
  jsx: 'automatic',
  minify: true,
  logLevel: 'warning',
  plugins: [withoutEditor, withScrollbars],
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  loader: { '.svg': 'dataurl', '.ttf': 'dataurl', '.woff2': 'dataurl', '.png': 'dataurl' },
});

const files = [
  ['@grafana/ui/dist/public/img', 'build/img'],
  ['@fontsource/inter/files/inter-latin-400-normal.woff2', 'fonts/inter/Inter-Regular.woff2'],
  ['@fontsource/inter/files/inter-latin-500-normal.woff2', 'fonts/inter/Inter-Medium.woff2'],
  [
    '@fontsource/roboto-mono/files/roboto-mono-latin-400-normal.woff2',
    'fonts/roboto/L0xTDF4xlVMF-BfR8bXMIhJHg45mwgGEFl0_3vrtSM1J-gEPT5Ese6hmHSh0mQ.woff2',
  ],
];
for (const [from, to] of files) {
  const target = join(into, 'public', to);
  mkdirSync(join(target, '..'), { recursive: true });
  cpSync(join(modules, from), target, { recursive: true });
}
