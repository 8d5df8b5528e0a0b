// The dashboard of a real broker with real traffic: each view, and lanes in motion.

import { EDGE, FLEET, Traffic, URL_OF_BROKER } from './traffic.mjs'
import { expect, pictures, require, scenario } from './stage.mjs'

/** Bytes that a browser transfers for the first view: heads and bodies, as they are on the wire. */
const SIZE_LIMIT = 100_000
const [CONTROL, URGENT, BULK] = [0, 4, 8].map((stream) => `.lane[data-stream="${stream}"]`)

function traffic(label, begin, body) {
  scenario(`broker/${label}`, { only: 'broker' }, async (stage) => {
    const made = new Traffic()
    try {
      begin(made)
      await body(stage, made)
    } finally {
      await made.end()
    }
  })
}

const both = (made) => {
  made.edge()
  made.fleet()
}

traffic('overview', (made) => made.edge(), async (stage, made) => {
  const listening = stage.hears('events')
  await stage.visit('')
  await listening
  made.fleet()
  await stage.text('main', `QUIC\\s+2\\b`)
  await stage.text('main', `TCP\\s+${FLEET}\\b`)
  await stage.text('#status', '^✓\\s*serving')
  // Rates are those of the last second: some 14 alarms and videos and 25 values.
  await stage.until(() => [...document.querySelectorAll('.card')].some((card) => /Messages/.test(card.innerText) && /in\s+(2\d|3\d|4\d)(\.\d)?\/s/.test(card.innerText)), null, 'about 39 messages in a second')
  await stage.text('.events', 'connected\\s+meter-')
})

traffic('clients', both, async (stage) => {
  const { page } = stage
  await stage.visit('clients')
  await page.getByLabel('Transport').selectOption('tcp')
  await page.getByLabel('Client begins with').fill('meter-')
  await stage.text('.view-head', `${FLEET} clients`)
  await page.getByLabel('Client begins with').fill('')
  await page.getByLabel('Transport').selectOption('quic')
  await stage.text('.view-head', '2 clients')
  await page.getByRole('link', { name: EDGE }).click()
  await stage.text('h1', EDGE)
  await stage.text('.chip', 'connected by QUIC')
})

traffic('lanes', (made) => made.edge(), async (stage) => {
  const { page } = stage
  await stage.visit(`clients/${EDGE}`)
  await stage.text(BULK, '8 bulk')
  await stage.text(URGENT, '200 urgent')
  await stage.text(CONTROL, 'Control\\s*first')
  const order = await page.locator('ol .lane').evaluateAll((found) => found.map((one) => one.dataset.stream))
  expect(order, ['0', '4', '8'], 'lanes from the most urgent')
  // Bulk waits for the slow link, the urgent stream for nothing.
  await stage.text(BULK, '\\d+ messages · [\\d.]+ (KiB|MiB) · oldest')
  await stage.text(BULK, 'waits for')
  await stage.text(URGENT, 'nothing waits')
  await stage.until((selector) => parseFloat(document.querySelector(`${selector} .queue .fill`).style.width) > 3, BULK, 'a bar of the backlog')
  // The limit of the link is 391 KiB/s.
  await stage.text(BULK, '→ out\\s+[34]\\d\\d KiB/s')
  await stage.text(URGENT, '→ out\\s+\\d+ B/s|→ out\\s+[\\d.]+ KiB/s')
  for (const selector of [URGENT, BULK]) {
    const moving = await pictures(stage, selector)
    require(moving > 4, `${moving} pictures of ${selector}`)
  }
  await stage.text('main', 'Round trip\\s+[\\d.]+ ms')
  await stage.text('main', 'Address\\s+127\\.0\\.0\\.1:\\d+')
  await stage.text('main', 'plant/hamburg/alarms/#')
})

traffic('disconnect', (made) => made.fleet(), async (stage) => {
  const { page } = stage
  const id = 'meter-3'
  await stage.visit('clients')
  await page.getByLabel('Client begins with').fill(id)
  await page.getByRole('link', { name: id, exact: true }).click()
  await stage.text('.chip', 'connected by TCP')
  // Its session ends with the connection.
  stage.tolerated = [/404/]
  await page.getByRole('button', { name: 'Disconnect …' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click()
  await stage.text('main > .problem', 'Not Found')
  await stage.text('.chip', 'no session')
  await stage.text('main', 'No connection')
})

traffic('topics', (made) => made.fleet(), async (stage) => {
  const { page } = stage
  // Levels without a retained message.
  stage.tolerated = [/404/]
  await stage.visit('topics')
  const open = (name) => page.getByRole('treeitem', { name }).first().locator('.tree-row').first().click()
  for (const name of ['plant', 'lyon', 'telemetry']) {
    await open(name)
  }
  await page.locator('.tree-row', { hasText: /^\s*7/ }).first().click()
  await stage.text('.topic', '^plant/lyon/telemetry/7$')
  await stage.text('main', '"temperature_c": 21\\.5')
})

traffic('console', (made) => made.edge(), async (stage) => {
  const { page } = stage
  await stage.visit('console')
  await stage.signIn()
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Topic filter').fill('plant/hamburg/alarms/+')
  await page.getByRole('button', { name: 'Subscribe' }).click()
  await stage.text('.messages', 'plant/hamburg/alarms/line-1')
  await page.getByLabel('Topic', { exact: true }).fill('plant/hamburg/alarms/test')
  await page.getByLabel('Payload').fill('{"alarm":"overheat"}')
  await page.getByRole('button', { name: 'Publish' }).click()
  await stage.text('.messages', '"alarm": "overheat"')
})

traffic('events', () => {}, async (stage, made) => {
  const listening = stage.hears('events')
  await stage.visit('events')
  await listening
  const ended = new Promise((done) => made.run('tcp', 'pub', '-i', 'passer-by', '-t', 'plant/x', '-m', '1').once('exit', done))
  await stage.text('.events', 'connected\\s+passer-by')
  await stage.text('.events', 'disconnected\\s+passer-by')
  expect(await ended, 0, 'exit code of the publisher')
})

traffic('size', () => {}, async (stage) => {
  const session = await stage.page.context().newCDPSession(stage.page)
  await session.send('Network.enable')
  let [bytes, number] = [0, 0]
  session.on('Network.loadingFinished', ({ encodedDataLength }) => {
    bytes += encodedDataLength
    number += 1
  })
  await stage.visit('')
  await stage.page.waitForLoadState('load')
  await stage.text('#status', '^✓\\s*serving')
  console.log(`# dashboard: ${bytes} bytes of ${number} responses from ${URL_OF_BROKER}`)
  require(number > 15, `only ${number} responses`)
  require(bytes <= SIZE_LIMIT, `${bytes} bytes, allowed are ${SIZE_LIMIT}`)
})
