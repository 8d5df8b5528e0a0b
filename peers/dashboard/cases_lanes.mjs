// Lanes of a client's streams, and the rule that a hidden tab fetches nothing.

import { EDGE } from './world.mjs'
import { expect, pictures, require, scenario } from './stage.mjs'

const FAST = { only: 'mock' }
const lane = (stream) => `.lane[data-stream="${stream}"]`

/** Width of a lane's bar as a part of its full width. */
const share = (stage, stream) => stage.page.evaluate((selector) => parseFloat(document.querySelector(`${selector} .queue .fill`).style.width), lane(stream))

scenario('lanes/order', FAST, async (stage) => {
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), '8 bulk')
  const order = await stage.page.locator('ol .lane').evaluateAll((found) => found.map((one) => one.dataset.stream))
  expect(order, ['0', '8', '4', '12', '16', '20'], 'lanes from the most urgent')
  await stage.text(lane(8), '200 urgent')
  await stage.text(lane(0), 'Control\\s*first')
  // A new priority moves a lane.
  stage.mock.world.edge.find((one) => one.stream === 20).priority = 201
  await stage.until(() => document.querySelectorAll('ol .lane')[1].dataset.stream === '20', null, 'stream 20 is second')
})

scenario('lanes/backlog', FAST, async (stage) => {
  const { held } = stage.mock.world
  for (const [stream, size] of [[4, 0], [16, 3_500_000], [20, 700_000]]) held.set(stream, size)
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), '684 KiB')
  const before = await share(stage, 20)
  held.set(20, 2_100_000)
  await stage.text(lane(20), '2\\.0 MiB')
  const after = await share(stage, 20)
  require(Math.abs(after / before - 3) < 0.1, `the bar grows from ${before} % to ${after} %, the backlog three times`)
  require(after > 40 && after < 60, `${after} % of 4 MiB`)
  held.set(20, 0)
  await stage.text(lane(20), 'nothing waits')
  expect(await share(stage, 20), 0, 'width of the bar without a backlog')
})

scenario('lanes/waits', FAST, async (stage) => {
  const { page } = stage
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), '▮ waits for the congestion gate\\s*behind stream 8')
  await stage.text(lane(16), '▮ waits for\\s*stream 4')
  await stage.text(lane(4), 'acknowledgements \\(Receive Maximum\\)')
  require(!(await page.locator(lane(8)).getAttribute('class')).includes('blocked'), 'stream 8 is open')
  expect(await page.locator('ol .lane.blocked').evaluateAll((found) => found.map((one) => one.dataset.stream)), ['4', '16', '20'], 'closed lanes')
  expect(await page.locator('.links path').count(), 2, 'brackets')
  await page.locator(lane(20)).getByRole('button', { name: 'behind stream 8' }).click()
  expect(await page.evaluate(() => document.activeElement.dataset.stream), '8', 'focused lane')
})

scenario('lanes/rates', FAST, async (stage) => {
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), '→ out\\s+\\d+ KiB/s')
  await stage.text(lane(20), '← in\\s+0 B/s')
  await stage.text('main', 'holding: bulk waits')
  await stage.text('main', 'Kind of path\\s+policed at 10 Mbit/s')
  await stage.text('main', '203\\.0\\.113\\.9:50123')
  await stage.text('main', 'plant/hamburg/edge-07/offline')
})

scenario('lanes/motion', FAST, async (stage) => {
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), '→ out\\s+\\d+ KiB/s')
  const moving = await pictures(stage, lane(20))
  require(moving > 4, `${moving} pictures of a lane with traffic`)
  await stage.page.emulateMedia({ reducedMotion: 'reduce' })
  const still = await pictures(stage, lane(20))
  // One sample may come meanwhile.
  require(still <= 2, `${still} pictures although the reader wants no motion`)
  const blank = await stage.page.evaluate((selector) => {
    const canvas = document.querySelector(`${selector} canvas`)
    return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height / 2 - 4).data.every((value) => value === 0)
  }, lane(20))
  require(!blank, 'packets are drawn without motion too')
})

scenario('lanes/streams-come-and-go', FAST, async (stage) => {
  const { world } = stage.mock
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), 'bulk')
  const removed = world.edge.pop()
  await stage.until((selector) => !document.querySelector(selector), lane(20), 'lane 20 is gone')
  world.edge.push({ ...removed, stream: 24, bytes_out: 0 })
  await stage.text(lane(24), '8 bulk')
})

scenario('lanes/reconnect', FAST, async (stage) => {
  stage.tolerated = [/ERR_/]
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), 'bulk')
  stage.mock.cutStreams()
  stage.mock.world.held.set(20, 100_000)
  await stage.text(lane(20), '97\\.7 KiB')
  await stage.until(() => document.querySelector('main > .problem').hidden, null, 'the error is gone')
})

scenario('client/disconnect', FAST, async (stage) => {
  const { page, mock } = stage
  await stage.visit(`clients/${EDGE}`)
  await stage.text('.chip', 'connected by QUIC')
  await page.getByRole('button', { name: 'Disconnect …' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
  require(mock.world.client(EDGE).connected, 'the client is connected after Cancel')
  await page.getByRole('button', { name: 'Disconnect …' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click()
  await stage.text('.chip', 'offline')
  await stage.text('main', 'No connection')
  await page.getByRole('button', { name: 'Delete session …' }).click()
  stage.tolerated = [/404/]
  await page.getByRole('dialog').getByRole('button', { name: 'Delete the session' }).click()
  await stage.text('main > .problem', 'Not Found')
  await stage.text('.chip', 'no session')
  require(await page.getByRole('button', { name: 'Disconnect …' }).isDisabled(), 'nothing is left to disconnect')
  expect(mock.world.client(EDGE), undefined, 'the session')
})

scenario('hidden/view-that-was-left', FAST, async (stage) => {
  const { mock } = stage
  await stage.visit(`clients/${EDGE}`)
  await stage.text(lane(20), 'bulk')
  expect(mock.openStreams, 1, 'streams of the lanes')
  await stage.visit('listeners', 'Listeners')
  while (mock.openStreams > 0) await new Promise(setImmediate)
})

scenario('hidden/nothing-is-fetched', FAST, async (stage) => {
  const { page, mock } = stage
  const hide = (isHidden) => page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => value })
    document.dispatchEvent(new Event('visibilitychange'))
  }, isHidden)
  await page.clock.install()
  for (const hash of ['', `clients/${EDGE}`, 'clients', 'topics', 'events', 'listeners']) {
    await stage.visit(hash)
    await stage.until(() => !document.querySelector('#status').innerText.includes('connecting'), null, 'the first answer')
    await hide(true)
    await page.waitForLoadState('networkidle')
    while (mock.openStreams > 0) await new Promise(setImmediate)
    const before = mock.requests.length
    await page.clock.runFor(120_000)
    expect(mock.requests.slice(before), [], `requests of the hidden view ${hash || 'overview'}`)
    const next = page.waitForRequest('**/api/v1/**')
    await hide(false)
    await next
  }
})
