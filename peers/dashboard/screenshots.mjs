// Writes pictures of every view: PEERS_NODE_MODULES=.peers/node_modules node peers/dashboard/screenshots.mjs [DIRECTORY]
// Without DIRECTORY it writes those of docs/dashboard.md, else every view, in both schemes and narrow.

import { mkdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { Stage, VIEWS, close } from './stage.mjs'
import { Mock } from './mock.mjs'
import { EDGE } from './world.mjs'

const [, , directory] = process.argv
const DOCS = fileURLToPath(new URL('../../docs/screenshots/', import.meta.url))
const ALL = [...VIEWS.map(([hash]) => [hash || 'overview', hash]), ['lanes', `clients/${EDGE}`], ['topic', 'topics?topic=plant%2Fhamburg%2Fstate%2Fline-1']]
const OF_DOCS = ['overview', 'lanes', 'clients', 'console']

/** Five minutes of the past for the charts. */
function past() {
  return import('./history.js').then((history) => {
    const real = Date.now
    let latest = null
    const end = new AbortController()
    history.listen((answer) => { latest = answer }, end.signal)
    end.abort()
    history.all().length = 0
    for (let ago = 300; ago > 0; ago -= 1) {
      Date.now = () => real() - ago * 1000
      const at = real() / 1000 - ago
      const wave = (period, depth) => 1 + depth * Math.sin((at * 2 * Math.PI) / period) + (Math.random() - 0.5) * depth * 0.5
      history.add({ ...latest, rates: {
        messages_in_per_sec: 4200 * wave(60, 0.2), messages_out_per_sec: 11800 * wave(75, 0.25), bytes_in_per_sec: 1.3e6 * wave(60, 0.2), bytes_out_per_sec: 4.1e6 * wave(75, 0.25),
        connects_per_sec: 14 * wave(31, 0.5), refusals_per_sec: Math.max(0, 2 * wave(20, 1.2) - 1),
      } })
    }
    Date.now = real
  })
}

async function talk(page) {
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Topic filter').fill('plant/#')
  await page.getByRole('button', { name: 'Subscribe' }).click()
  for (const [topic, text] of [['plant/hamburg/state', 'running'], ['plant/hamburg/alarms/line-1', '{"line":1,"alarm":"overheat","temperature_c":81.5}']]) {
    await page.getByLabel('Topic', { exact: true }).fill(topic)
    await page.getByLabel('Payload').fill(text)
    await page.getByRole('button', { name: 'Publish' }).click()
    await page.locator('.messages', { hasText: topic }).waitFor()
  }
}

async function picture(stage, name, hash, scheme, viewport, target) {
  const page = await stage.open({ colorScheme: scheme, viewport })
  await stage.visit(hash, null, page)
  await page.waitForLoadState('load')
  if (name === 'console') await talk(page)
  // The traffic of some seconds.
  await page.waitForTimeout(name === 'events' || name === 'overview' ? 9000 : 3200)
  if (name === 'overview') await page.evaluate(past)
  await page.waitForTimeout(1200)
  await page.screenshot({ path: target })
  await page.context().close()
}

const stage = new Stage()
await stage.begin(await Mock.start())
mkdirSync(directory ?? DOCS, { recursive: true })
if (directory) {
  for (const [name, hash] of ALL) {
    for (const scheme of ['light', 'dark']) await picture(stage, name, hash, scheme, { width: 1280, height: 860 }, `${directory}/${name.replace('/', '-')}-${scheme}.png`)
    await picture(stage, name, hash, 'light', { width: 390, height: 844 }, `${directory}/${name.replace('/', '-')}-narrow.png`)
  }
} else {
  for (const name of OF_DOCS) {
    const [, hash] = ALL.find(([one]) => one === name)
    for (const scheme of ['light', 'dark']) await picture(stage, name, hash, scheme, { width: 1280, height: 860 }, `${DOCS}${name}-${scheme}.png`)
  }
}
await stage.end(true)
await close()
