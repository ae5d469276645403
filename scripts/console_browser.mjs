// Looks at the console in a real browser: every view of every server that it is given, at two widths, light and dark, in
// two languages. Fails on an error of the page, an overflow, a control without a name, a dialog that a name has opened.
//
// Called by scripts/console_browser.py, with a JSON file that says where.
import { readFileSync, mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const asked = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const { chromium } = createRequire(path.join(asked.modules, 'x.js'))('playwright-core');
mkdirSync(asked.out, { recursive: true });

const shapes = [
  { name: 'phone-light-en', width: 360, height: 780, colorScheme: 'light', locale: 'en-US' },
  { name: 'desk-dark-zh', width: 1400, height: 900, colorScheme: 'dark', locale: 'zh-CN' },
  { name: 'desk-light-en', width: 1400, height: 900, colorScheme: 'light', locale: 'en-US' },
  { name: 'phone-dark-zh', width: 360, height: 780, colorScheme: 'dark', locale: 'zh-CN' },
];
const faults = [];
let looked = 0;

const nameless = () => {
  const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() || e.getAttribute('title') || e.labels?.length || (e.getAttribute('placeholder') ?? '');
  return [...document.querySelectorAll('button, a, input, select, textarea, [role=img], [role=region]')].filter((e) => e.getClientRects().length && !named(e)).map((e) => e.outerHTML.slice(0, 120));
};

async function look(page, scene, shape, view) {
  const fault = (what) => faults.push(`${scene.name} ${shape.name} ${view}: ${what}`);
  looked += 1;
  const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  if (wide[0] > wide[1]) {
    const who = await page.evaluate(() => [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide, nav, pre')).slice(0, 3).map((e) => e.tagName + '.' + e.className));
    fault(`overflows: ${wide[0]} of ${wide[1]} pixels (${who})`);
  }
  for (const e of await page.evaluate(nameless)) fault(`has no name: ${e}`);
  await page.screenshot({ path: path.join(asked.out, `${scene.name}-${view.replaceAll(/[^a-z0-9]+/gi, '_').slice(0, 40)}-${shape.name}.png`), fullPage: true });
}

async function visit(browser, scene, shape) {
  const context = await browser.newContext({ viewport: { width: shape.width, height: shape.height }, colorScheme: shape.colorScheme, locale: shape.locale });
  const page = await context.newPage();
  let view = 'login';
  const fault = (what) => faults.push(`${scene.name} ${shape.name} ${view}: ${what}`);
  // A 401 is how the page learns that it has to ask for a login.
  page.on('console', (m) => { if (['error', 'warning'].includes(m.type()) && !/401/.test(m.text())) fault(`console: ${m.text()}`); });
  page.on('pageerror', (e) => fault(`error: ${e.message}`));
  page.on('dialog', (d) => { fault(`dialog: ${d.message()}`); d.dismiss(); });
  page.on('request', (r) => { if (!r.url().startsWith(scene.url)) fault(`asks elsewhere: ${r.url()}`); });
  await page.goto(scene.url);
  if (scene.user) {
    await page.waitForSelector('form.login');
    await look(page, scene, shape, view);
    // By keyboard alone.
    await page.keyboard.type(scene.user);
    await page.keyboard.press('Tab');
    await page.keyboard.type(scene.password);
    await page.keyboard.press('Enter');
  }
  await page.waitForSelector('nav a');
  const names = await page.$$eval('nav a', (all) => all.map((a) => a.getAttribute('href').slice(1)));
  if (scene.views && JSON.stringify(names) !== JSON.stringify(scene.views)) fault(`has the views ${names}, not ${scene.views}`);
  for (view of [...names, ...(scene.more || [])]) {
    await page.goto(scene.url + '#' + view);
    await page.waitForSelector('main h1');
    await page.waitForTimeout(view === 'now' ? (scene.wait ?? 1500) : 900);
    const open = page.locator('details.shape > summary').first();
    if (view.startsWith('slow') && (await open.count()) && !(await page.locator('details.shape[open]').count())) {
      await open.click();
      await page.waitForTimeout(700);
    }
    const explain = page.locator('form.card button[type=button]');
    if (view.startsWith('data/') && (await explain.count())) {
      await page.locator('textarea[name=filter]').fill(scene.filter || '{}');
      await explain.click();
      await page.waitForSelector('.tree, [role=alert]');
      await page.waitForTimeout(500);
    }
    const alerts = await page.$$eval('main [role=alert]', (all) => all.map((a) => a.textContent.trim()).filter(Boolean));
    if (alerts.length) fault(`says ${alerts}`);
    // Who speaks English finds the planted trouble in what is written.
    const expected = scene.expect?.[view];
    if (expected && shape.locale === 'en-US') {
      const read = () => page.$eval('main', (e) => e.innerText.replace(/\s+/g, ' '));
      const until = Date.now() + 15_000;
      while (!new RegExp(expected).test(await read()) && Date.now() < until) await page.waitForTimeout(500);
      const text = await read();
      if (!new RegExp(expected).test(text)) fault(`does not say ${expected}, but ${text.slice(0, 600)}`);
    }
    await look(page, scene, shape, view);
  }
  view = 'kill';
  if (scene.kill && names.includes('running')) {
    await page.goto(scene.url + '#running');
    const kill = page.locator('button.bad').first();
    await kill.waitFor();
    await kill.click();
    await page.waitForSelector('dialog[open]');
    await look(page, scene, shape, view);
    await page.keyboard.press('Escape');
    if (await page.locator('dialog[open]').count()) fault('the question stays after Escape');
  }
  await context.close();
}

const browser = await chromium.launch({ executablePath: asked.executable, args: ['--no-sandbox'] });
for (const scene of asked.scenes) {
  for (const shape of shapes.slice(0, scene.shapes ?? shapes.length)) await visit(browser, scene, shape).catch((e) => faults.push(`${scene.name} ${shape.name}: ${e.message}`));
}
await browser.close();
console.log(`${looked} views were looked at, ${faults.length} faults; pictures are in ${asked.out}`);
faults.forEach((f) => console.log(' ', f));
process.exit(faults.length ? 1 : 0);
