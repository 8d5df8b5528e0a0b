// Writes pictures of a real broker with traffic: PEERS_BINARY=target/release/braidmq PEERS_NODE_MODULES=.peers/node_modules
// node peers/dashboard/screenshots.mjs [DIRECTORY]. Without DIRECTORY it writes those of docs/dashboard.md, else every view,
// in both schemes and narrow.

import { mkdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { serve } from './serve.mjs'

const broker = await serve('quic.link_rate=400000')
// They read the ports of the broker.
const { EDGE, FOUR_LINES, Traffic } = await import('./traffic.mjs')
const { Stage, VIEWS, close } = await import('./stage.mjs')

const [, , directory] = process.argv
const DOCS = fileURLToPath(new URL('../../docs/screenshots/', import.meta.url))
const ALL = [...VIEWS.map(([hash]) => [hash || 'overview', hash]), ['lanes', `clients/${EDGE}`], ['topic', 'topics?topic=plant%2Flyon%2Ftelemetry%2F7']]
const OF_DOCS = ['lanes', 'clients', 'console', 'overview']
/** Time for which the overview is open, so that its charts have a past. */
const PAST = 100_000
const VIEWPORT = { width: 1280, height: 860 }
const NARROW = { width: 390, height: 844 }

async function talk(page) {
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Topic filter').fill('plant/+/telemetry/7')
  await page.getByRole('button', { name: 'Subscribe' }).click()
  for (const [topic, text] of [['plant/porto/telemetry/7', 'sensor replaced'], ['plant/hamburg/telemetry/7', '{"line":7,"alarm":"overheat","temperature_c":81.5}']]) {
    await page.getByLabel('Topic', { exact: true }).fill(topic)
    await page.getByLabel('Payload').fill(text)
    await page.getByRole('button', { name: 'Publish' }).click()
    await page.locator('.messages', { hasText: topic }).first().waitFor()
  }
}

const stage = new Stage()
await stage.begin(null)
const opened = new Map()

async function open(hash, scheme, viewport) {
  const page = await stage.open({ colorScheme: scheme, viewport })
  await stage.visit(hash, null, page)
  return page
}

async function picture(name, hash, scheme, viewport, target) {
  const page = opened.get(`${name} ${scheme} ${viewport.width}`) ?? await open(hash, scheme, viewport)
  if (name === 'console') await talk(page)
  // The traffic of some seconds; the console shows what it has published.
  await page.waitForTimeout(name === 'console' ? 1500 : 6000)
  await page.screenshot({ path: target })
  await page.context().close()
}

const traffic = new Traffic()
const began = Date.now()
for (const scheme of ['light', 'dark']) opened.set(`overview ${scheme} ${VIEWPORT.width}`, await open('', scheme, VIEWPORT))
traffic.edge(FOUR_LINES)
traffic.fleet()
traffic.run('ws', 'bench conn', '-c', '40', '-R', '4', '--prefix', 'panel-', '--shortids', '--plain', '--quiet')
traffic.run('quic', 'bench conn', '-c', '12', '-R', '1', '--prefix', 'gateway-', '--shortids', '--plain', '--quiet')
traffic.run('tcp', 'bench conn', '-c', '150', '-R', '5', '--prefix', 'sensor-', '--shortids', '--plain', '--quiet')

mkdirSync(directory ?? DOCS, { recursive: true })
const names = directory ? ALL.map(([name]) => name) : OF_DOCS
for (const name of names.toSorted((left, right) => (left === 'overview') - (right === 'overview'))) {
  const [, hash] = ALL.find(([one]) => one === name)
  const file = `${directory ?? DOCS}/${name}`
  if (name === 'overview') await new Promise((done) => setTimeout(done, Math.max(0, PAST - (Date.now() - began))))
  for (const scheme of ['light', 'dark']) await picture(name, hash, scheme, VIEWPORT, `${file}-${scheme}.png`)
  if (directory) await picture(name, hash, 'light', NARROW, `${file}-narrow.png`)
}
await traffic.end()
// Topics without a retained message.
stage.tolerated = [/404/]
await stage.end(true)
await close()
await broker.end()
