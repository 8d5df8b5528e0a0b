// MQTT console, topics, events, and the modules that need no view.

import { expect, require, scenario } from './stage.mjs'

const FAST = { only: 'mock' }

/** Connects the console and subscribes; returns the Client Identifier. */
async function connect(stage, filter, page = stage.page) {
  await stage.visit('console', 'Console', page)
  await stage.signIn(page)
  const id = await page.getByLabel('Client Identifier').inputValue()
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Topic filter').fill(filter)
  await page.getByRole('button', { name: 'Subscribe' }).click()
  await page.getByRole('button', { name: `Unsubscribe from ${filter}` }).waitFor()
  return id
}

scenario('console/round-trip', { both: true }, async (stage) => {
  const { page } = stage
  await connect(stage, 'dashboard/test/#')
  await page.getByLabel('Topic', { exact: true }).fill('dashboard/test/1')
  for (const [qos, text, shown] of [['0', '{"a":[1,2]}', '"a": \\[\\s+1,'], ['1', 'grüße', 'grüße']]) {
    await page.locator('.card', { hasText: 'Publish' }).getByLabel('QoS').last().selectOption(qos)
    await page.getByLabel('Payload').fill(text)
    await page.getByRole('button', { name: 'Publish' }).click()
    await stage.text('.messages li pre', shown)
  }
  await stage.text('.messages li .muted', 'text · 7 B')
  await page.getByRole('button', { name: 'Unsubscribe from dashboard/test/#' }).click()
  await stage.until(() => document.querySelectorAll('.chips li').length === 0, null, 'no subscription is left')
})

scenario('console/client-page', {}, async (stage) => {
  const { page } = stage
  // The session ends with the connection, so that the page asks for a client that is gone.
  stage.tolerated = [/404/]
  const id = await connect(stage, 'dashboard/page/#')
  await stage.page.evaluate((hash) => { location.hash = hash }, `#/clients/${encodeURIComponent(id)}`)
  await stage.text('h1', id)
  await stage.text('.lane.control', 'Control\\s*first')
  await stage.text('main', 'dashboard/page/#')
  await page.getByRole('button', { name: 'Disconnect …' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click()
  await stage.text('#notices', 'is disconnected')
})

scenario('console/deep-json', FAST, async (stage) => {
  // Indentation would make megabytes of them.
  await connect(stage, '#')
  const shown = () => stage.page.locator('.messages li pre').first().innerText()
  for (const [topic, text] of [['deep', '['.repeat(4000) + ']'.repeat(4000)], ['wide', `[${'0,'.repeat(30_000)}0]`], ['quoted', `["${'['.repeat(200)}\\"${'['.repeat(200)}"]`]]) {
    stage.mock.mqtt.publish(topic, Buffer.from(text))
    await stage.text('.messages li', topic)
    expect((await shown()) === text, topic !== 'quoted', `${topic} as it is`)
    require((await shown()).length <= 65536, `${topic} has ${(await shown()).length} characters`)
  }
  await stage.text('.messages li pre', '^\\[\\s+"\\[+')
})

scenario('console/binary-and-bound', FAST, async (stage) => {
  await connect(stage, '#')
  stage.mock.mqtt.publish('bin', Buffer.from([0, 255, 65, 10]))
  await stage.text('.messages li pre', '0000 {2}00 ff 41 0a +\\.\\.A\\.')
  for (let at = 0; at < 300; at += 1) stage.mock.mqtt.publish(`t/${at}`, Buffer.from(String(at)))
  await stage.text('.messages li', 't/299')
  const kept = () => stage.page.locator('.messages li').count()
  expect(await kept(), 200, 'messages on the page')
  for (const hash of ['listeners', 'console']) {
    await stage.page.evaluate((to) => { location.hash = `#/${to}` }, hash)
    await stage.text('h1', hash === 'console' ? 'Console' : 'Listeners')
  }
  expect(await kept(), 200, 'messages that are kept')
  // A payload of many frames and larger than what is shown.
  stage.mock.mqtt.publish('large', Buffer.alloc(300_000, 'x'))
  await stage.text('.messages li', '… 229 KiB more')
})

scenario('console/priority', FAST, async (stage) => {
  const { page, mock } = stage
  await stage.visit('console')
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Priority').fill('200')
  await page.getByRole('button', { name: 'Subscribe' }).click()
  await page.getByRole('button', { name: 'Unsubscribe from #' }).waitFor()
  const [connection] = mock.mqtt.connections
  require(/braid-priority\0\x03200$/.test(connection.subscribeProperties), `User Property of SUBSCRIBE: ${JSON.stringify(connection.subscribeProperties)}`)
})

scenario('console/reconnect', FAST, async (stage) => {
  const { mock } = stage
  await connect(stage, 'again/#')
  for (const { socket } of mock.mqtt.connections) socket.destroy()
  await stage.text('.view-head', 'not connected')
  await stage.text('.view-head', '● connected')
  while (![...mock.mqtt.connections].some(({ filters }) => filters.has('again/#'))) await new Promise(setImmediate)
  mock.mqtt.publish('again/1', Buffer.from('after'))
  await stage.text('.messages', 'after')
})

scenario('console/refused-filter', FAST, async (stage) => {
  const { page } = stage
  await stage.visit('console')
  await page.getByRole('button', { name: 'Connect' }).click()
  await page.getByLabel('Topic filter').fill('a/#/b')
  await page.getByRole('button', { name: 'Subscribe' }).click()
  await stage.text('main > .problem', 'topic filter not valid')
})

scenario('console/other-view', FAST, async (stage) => {
  // Messages that arrive while another view is open are there afterwards.
  await connect(stage, '#')
  await stage.page.evaluate(() => { location.hash = '#/listeners' })
  await stage.text('h1', 'Listeners')
  stage.mock.mqtt.publish('while/away', Buffer.from('kept'))
  await stage.page.evaluate(() => { location.hash = '#/console' })
  await stage.text('.messages', 'while/away')
})

// === Modules ===

/** Frames from a server, and the state and text in which the client ends. */
const FRAMES = [
  ['accepted, a byte at a time', [[0x20], [3], [0], [0], [0]], 'connected', ''],
  ['refused', [[0x20, 3, 0, 0x87, 0]], 'waiting', 'The broker refused the connection: not authorized'],
  ['ended', [[0x20, 3, 0, 0, 0, 0xe0, 1, 0x8b]], 'waiting', 'The broker ended the connection: server shutting down'],
  ['too large', [[0x30, 0xff, 0xff, 0xff, 0x7f]], 'waiting', 'too large a packet'],
  ['bad length', [[0x30, 0xff, 0xff, 0xff, 0xff]], 'waiting', 'bad length'],
  ['short packet', [[0x20, 3, 0, 0, 0, 0x30, 3, 0, 9, 65]], 'waiting', 'too short a packet'],
  ['unknown property', [[0x20, 4, 0, 0, 1, 0x7f]], 'waiting', 'unknown property 127'],
  ['closed', [null], 'waiting', 'The connection ended'],
]

scenario('console/frames', FAST, async (stage) => {
  await stage.visit('')
  const found = await stage.page.evaluate(async (table) => {
    const { connect } = await import('./mqtt.js')
    const real = window.WebSocket
    const results = []
    for (const [, frames] of table) {
      let last = null
      window.WebSocket = class {
        static OPEN = 1
        readyState = 1
        constructor() { window.lastSocket = this }
        send() {}
        close() { queueMicrotask(() => this.onclose()) }
      }
      const client = connect({ url: 'ws://x/mqtt', clientId: 'c', onState: (state, text) => { last = [state, text] }, onMessage: () => {} })
      const socket = window.lastSocket
      socket.onopen()
      for (const frame of frames) {
        if (frame) socket.onmessage({ data: new Uint8Array(frame).buffer })
        else socket.onclose()
      }
      if (last[0] !== 'waiting' && frames.flat().includes(0xe0)) socket.onclose()
      await new Promise((done) => setTimeout(done))
      results.push(last)
      client.close()
    }
    window.WebSocket = real
    return results
  }, FRAMES)
  for (const [at, [label, , state, text]] of FRAMES.entries()) {
    expect(found[at][0], state, `${label}: state`)
    require(found[at][1].includes(text), `${label}: ${found[at][1]} instead of ${text}`)
  }
})

scenario('format/table', FAST, async (stage) => {
  await stage.visit('')
  const cases = [
    ['bytes', 0, '0 B'], ['bytes', 1023, '1023 B'], ['bytes', 1024, '1.0 KiB'], ['bytes', 1_048_576 * 300, '300 MiB'], ['bytes', null, '–'],
    ['duration', 59, '59 s'], ['duration', 3599, '59 min 59 s'], ['duration', 3600, '1 h 0 min'], ['duration', 90_000, '1 d 1 h'],
    ['milliseconds', 0.42, '0.4 ms'], ['milliseconds', 999, '999 ms'], ['milliseconds', 1500, '1.5 s'], ['milliseconds', 120_000, '2 min 0 s'],
    ['short', 0.5, '0.5'], ['short', 1204.4, '1,204'], ['short', 2.41e6, '2.41 M'], ['percent', 0.0042, '0.42 %'], ['percent', 0, '0 %'],
    ['roundUp', 1, 1], ['roundUp', 1.1, 2], ['roundUp', 4200, 5000], ['roundUp', 99, 100], ['powerOfTwo', 1025, 2048],
  ]
  const payloads = [
    [[], 'empty', ''], [[...Buffer.from('{"a":1}')], 'JSON', '{\n  "a": 1\n}'], [[...Buffer.from('{"a":')], 'text', '{"a":'],
    [[...Buffer.from('grün\n')], 'text', 'grün\n'], [[195], 'binary', '0000  c3                                               .'], [[65, 0], 'binary', '0000  41 00                                            A.'],
  ]
  const found = await stage.page.evaluate(async ([calls, data]) => {
    const format = await import('./format.js')
    return [calls.map(([name, value]) => format[name](value)), data.map(([bytes]) => format.payload(new Uint8Array(bytes))),
      format.payload(new TextEncoder().encode('é'.repeat(40_000).slice(1).padStart(40_000, 'a')))]
  }, [cases, payloads])
  cases.forEach(([name, value, wanted], at) => expect(found[0][at], wanted, `${name}(${value})`))
  payloads.forEach(([, kind, text], at) => expect(found[1][at], { kind, text }, `payload ${at}`))
  expect([found[2].kind, found[2].text.endsWith('more')], ['text', true], 'a payload that is cut inside a character')
})

// === Topics and events ===

scenario('topics/tree', FAST, async (stage) => {
  const { page } = stage
  await stage.visit('topics')
  await page.getByRole('treeitem', { name: 'plant' }).waitFor()
  await page.locator('[role=treeitem]').first().focus()
  for (const level of ['plant', 'hamburg', 'telemetry']) {
    expect(await page.evaluate(() => document.activeElement.querySelector('.name').innerText), level, 'focused level')
    await page.keyboard.press('ArrowRight')
    await stage.until(() => document.activeElement.querySelector('[role=treeitem]'), null, `children of ${level}`)
    await page.keyboard.press('ArrowDown')
  }
  await stage.text('.more', 'and 200 more')
  for (const key of ['ArrowLeft', 'ArrowLeft', 'ArrowDown', 'ArrowDown', 'ArrowDown', 'ArrowRight']) await page.keyboard.press(key)
  await stage.until(() => document.activeElement.querySelector('[role=treeitem]'), null, 'children of state')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Enter')
  await stage.text('.topic', '^plant/hamburg/state/line-1$')
  await stage.text('main', '"speed_rpm": 1480')
  expect(await page.evaluate(() => document.activeElement.getAttribute('aria-selected')), 'true', 'the topic is selected')
  await page.getByRole('button', { name: 'Delete …' }).click()
  stage.tolerated = [/404/]
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await stage.text('main', 'Nothing is retained for this topic')
})

scenario('topics/address', FAST, async (stage) => {
  stage.tolerated = [/404/]
  await stage.visit('topics?topic=plant%2Flyon%2Fvideo%2Fline-2')
  await stage.text('.topic', '^plant/lyon/video/line-2$')
  await stage.text('main', '\\(binary\\)')
  await stage.text('.recorded', 'since .*\\d\\d:\\d\\d:\\d\\d, .* 12 were left out')
  await stage.text('.facts', '\\d since .*\\d\\d:\\d\\d:\\d\\d')
  await stage.visit('topics?topic=plant%2Flyon%2Falarms%2Fline-2')
  await stage.text('main', '… 4\\.\\d KiB more')
})

scenario('events/live', { both: true }, async (stage) => {
  await stage.visit('events')
  await stage.signIn()
  if (stage.mock) while (stage.mock.openStreams === 0) await new Promise(setImmediate)
  const other = await stage.open()
  const id = await connect(stage, 'dashboard/events', other)
  await stage.text('.events', `connected\\s+${id}`)
  await stage.text('.events', `subscribed\\s+${id}`)
})

scenario('events/pause-and-filter', FAST, async (stage) => {
  const { page, mock } = stage
  const tell = async (kind, id) => {
    while (mock.openStreams === 0) await new Promise(setImmediate)
    mock.world.tell(kind, { at: Date.now() / 1000, client_id: id })
  }
  await stage.visit('events')
  await tell('connected', 'first')
  await stage.text('.events', 'first')
  await page.getByRole('button', { name: 'Pause' }).click()
  await tell('connected', 'second')
  await stage.text('.view-head', 'Paused, [1-9]')
  require(!(await page.locator('.events').innerText()).includes('second'), 'a paused list stands still')
  await page.getByRole('button', { name: 'Continue' }).click()
  await stage.text('.events', 'second')
  const asked = page.waitForRequest((request) => /kinds=/.test(request.url()) && !/kinds=connected/.test(request.url()))
  await page.getByLabel('connected', { exact: true }).uncheck()
  await asked
  await page.getByRole('button', { name: 'Clear' }).click()
  await stage.text('main', 'Waiting for events')
})
