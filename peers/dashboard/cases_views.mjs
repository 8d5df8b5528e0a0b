// Views, navigation, size, errors and sign-in.

import { EDGE } from './world.mjs'
import { VIEWS, expect, require, scenario } from './stage.mjs'

// === Views ===

/** Text that a view of the mock shows, beside its heading. */
const CONTENT = {
  '': '10.?000|600', clients: '600 clients', topics: 'plant', console: 'not connected', events: 'Kinds',
  bans: 'scanner-3', listeners: 'not available[^]*/mqtt of the HTTP front', config: 'limits.streams', autoquic: 'QUIC costs less',
}

for (const [hash, heading] of VIEWS) {
  scenario(`views/${hash || 'overview'}`, { both: true }, async (stage) => {
    await stage.visit(hash, heading)
    await stage.signIn()
    if (stage.mock) await stage.text('main', CONTENT[hash])
    await stage.text('#status', '^(✓|!|■|✕)\\s*\\w+')
    expect(await stage.page.locator('nav [aria-current=page]').innerText(), heading, 'current view')
    expect(await stage.problem(), '', 'errors')
  })
}

scenario('views/back', { only: 'mock' }, async (stage) => {
  const { page } = stage
  await stage.visit('', 'Overview')
  await page.getByRole('link', { name: 'Clients' }).click()
  await page.getByLabel('Client begins with').fill(EDGE)
  await stage.text('.view-head', '1 client$')
  await page.getByRole('link', { name: EDGE }).click()
  await stage.text('h1', EDGE)
  await page.goBack()
  await stage.text('h1', 'Clients')
  expect(await page.getByLabel('Client begins with').inputValue(), EDGE, 'the filter after Back')
  await page.goBack()
  await stage.text('h1', 'Overview')
})

scenario('overview/figures', { both: true }, async (stage) => {
  await stage.visit('')
  await stage.signIn()
  await stage.until(async () => {
    const shown = document.querySelector('.figure strong')?.innerText
    return shown !== undefined && shown !== '–' && document.querySelector('.plot path.line')?.getAttribute('d')?.includes('L')
  }, null, 'two samples in a chart')
})

scenario('overview/refusing', { only: 'mock' }, async (stage) => {
  Object.assign(stage.mock.world, { status: 'refusing', reasons: ['memory is above the high watermark'] })
  await stage.visit('')
  await stage.text('.reasons', 'The broker is refusing\\s+memory is above')
  await stage.text('#status', '^!\\s*refusing')
})

scenario('views/theme', {}, async (stage) => {
  const { page } = stage
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  await stage.visit('')
  const light = await background()
  await page.getByRole('button', { name: 'Dark' }).click()
  const dark = await background()
  require(light !== dark, `both schemes have the background ${light}`)
  await page.reload()
  expect(await background(), dark, 'background after a reload')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.getByRole('button', { name: 'Light' }).click()
  expect(await background(), light, 'light although the system is dark')
})

scenario('views/hostile-text', { only: 'mock' }, async (stage) => {
  const { world, mqtt } = stage.mock
  const hostile = '<img src=x onerror=alert(1)>'
  world.clients.unshift({ ...world.client(EDGE), client_id: hostile, user: hostile })
  world.bans.push({ client: hostile, reason: hostile, expires_at: null })
  for (const hash of ['clients', `clients/${encodeURIComponent(hostile)}`, 'bans']) {
    await stage.visit(hash)
    await stage.text('main', '<img src=x onerror')
  }
  await stage.visit('events')
  await stage.until(() => document.querySelector('.view-head').innerText.includes('0 shown'), null, 'the list of events')
  await expectEvent(stage, { at: 1, client_id: hostile, cause: hostile })
  await stage.text('main', '<img src=x onerror')
  require(mqtt.connections.size === 0, 'no MQTT connection')
})

/** Tells an event until the page, which connects meanwhile, shows one. */
async function expectEvent(stage, data) {
  while (stage.mock.openStreams === 0) await new Promise(setImmediate)
  stage.mock.world.tell('refused', data)
}

// === Clients ===

scenario('clients/filter', { only: 'mock' }, async (stage) => {
  const { page } = stage
  await stage.visit('clients')
  await page.getByLabel('Transport').selectOption('quic')
  await page.getByLabel('State').selectOption('true')
  const wanted = stage.mock.world.clients.filter((one) => one.transport === 'quic').length
  await stage.text('.view-head', `^Clients\\s+${wanted} clients`)
  const transports = await page.locator('.vrows [role=row]:not([hidden]) .transport').allInnerTexts()
  expect([...new Set(transports)], ['QUIC'], 'transports')
  await page.getByLabel('User').fill('nobody')
  await stage.text('main', 'No client matches')
})

scenario('clients/tenants', { only: 'mock' }, async (stage) => {
  const { page } = stage
  const { world } = stage.mock
  const [first] = world.clients
  for (const mountpoint of [null, 'acme/']) world.clients.push({ ...first, client_id: 'twin', mountpoint, connected: true, transport: 'tcp', connected_at: 1 })
  await stage.visit('clients?prefix=twin')
  await page.getByRole('link', { name: 'twin · acme/' }).click()
  await stage.text('main', 'Tenant\\s+acme/')
  await page.getByRole('button', { name: 'Disconnect …' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect', exact: true }).click()
  await stage.text('.view-head', 'offline')
  expect([null, 'acme/'].map((mountpoint) => world.client('twin', mountpoint).connected), [true, false], 'connected')
  // The stream of lanes ends with the connection, and that is no error.
  expect(await stage.problem(), '', 'errors')
})

scenario('clients/changes', { only: 'mock' }, async (stage) => {
  // The pages on screen are read again, also if clients came before them.
  const { world } = stage.mock
  await stage.page.clock.install()
  await stage.visit('clients')
  await stage.text('.view-head', '600 clients')
  await stage.page.getByRole('grid').focus()
  const last = world.clients.at(-1).client_id
  for (const key of ['End', 'Home']) {
    await stage.page.keyboard.press(key)
    await stage.text('.vrow[aria-selected=true]:not([hidden])', key === 'End' ? last : world.clients[0].client_id)
  }
  world.clients.unshift({ ...world.clients[0], client_id: 'aaa-first' })
  await stage.page.clock.runFor(5100)
  await stage.text('.view-head', '601 clients')
  await stage.text('.vrows', 'aaa-first')
  await stage.page.keyboard.press('End')
  await stage.text('.vrow[aria-selected=true]:not([hidden])', last)
  await stage.page.clock.runFor(5100)
  await stage.text('.view-head', '601 clients')
  // The client between the two pages is in the second one now.
  await stage.page.evaluate(() => { document.querySelector('.vlist').scrollTop = 490 * 34 })
  await stage.text('.vrows', world.clients[500].client_id)
})

scenario('clients/leave', { only: 'mock', clients: 3 }, async (stage) => {
  const { world } = stage.mock
  await stage.page.clock.install()
  await stage.visit('clients')
  await stage.text('.view-head', '3 clients')
  const [{ client_id: gone }] = world.clients.splice(1, 1)
  await stage.page.clock.runFor(5100)
  await stage.text('.view-head', '2 clients')
  const shown = await stage.page.locator('.vrows [role=row]:not([hidden]) .client').allInnerTexts()
  expect(shown, world.clients.map((one) => one.client_id), `clients without ${gone}`)
  world.clients.length = 0
  await stage.page.clock.runFor(5100)
  await stage.text('main', 'No client matches')
})

scenario('clients/leave-a-page', { only: 'mock' }, async (stage) => {
  // The second page begins elsewhere when clients of the first one have left, also if that has the same cursor.
  const { world } = stage.mock
  await stage.page.clock.install()
  await stage.visit('clients')
  await stage.page.getByRole('grid').focus()
  for (const key of ['End', 'Home']) {
    await stage.page.keyboard.press(key)
    await stage.text('.vrow[aria-selected=true]:not([hidden])', world.clients.at(key === 'End' ? -1 : 0).client_id)
  }
  world.clients.splice(3, 120)
  await stage.page.clock.runFor(5100)
  await stage.text('.view-head', '480 clients')
  await stage.page.keyboard.press('End')
  await stage.text('.vrow[aria-selected=true]:not([hidden])', world.clients.at(-1).client_id)
})

scenario('clients/uncounted', { only: 'mock' }, async (stage) => {
  // The broker counts no more than 100,000 clients for a query.
  const { page, mock } = stage
  mock.world.isCounted = false
  await stage.visit('clients')
  await stage.text('.view-head', '500 or more clients')
  const grid = page.getByRole('grid', { name: 'Clients' })
  expect(await grid.getAttribute('aria-rowcount'), '-1', 'rows of the grid')
  await grid.focus()
  await page.keyboard.press('End')
  await stage.text('.view-head', '600 clients')
  expect(await grid.getAttribute('aria-rowcount'), '601', 'rows of the grid')
  // A page of a query may be empty, and not be the last one.
  await page.route('**/api/v1/clients?*', (route) => {
    const isFirst = !new URL(route.request().url()).searchParams.has('cursor')
    const items = isFirst ? [] : [mock.world.client(EDGE)]
    return route.fulfill({ json: { items, cursor: isFirst ? 'next' : null, total: null } })
  })
  await page.getByLabel('User').fill('edge')
  await stage.text('.view-head', '^Clients\\s+1 client$')
  await stage.text('.vrows', EDGE)
})

scenario('clients/offline', { only: 'mock' }, async (stage) => {
  const { world } = stage.mock
  // A client that is away has no streams to look at.
  stage.tolerated = [/409/]
  world.clients[0] = { ...world.clients[0], client_id: 'away', connected: false, transport: null, address: null, connected_at: null, disconnected_at: 1, keep_alive_secs: null, clean_start: null }
  await stage.visit('clients/away')
  await stage.text('main', 'Keep Alive\\s+–')
  await stage.text('main', 'Clean start\\s+–')
})

scenario('clients/scroll', { only: 'mock', clients: 10_000 }, async (stage) => {
  const { page } = stage
  await stage.visit('clients')
  await stage.text('.view-head', '10,000 clients')
  const grid = page.getByRole('grid', { name: 'Clients' })
  await grid.focus()
  await page.keyboard.press('End')
  const last = stage.mock.world.clients.at(-1).client_id
  await stage.text('.vrow[aria-selected=true]:not([hidden])', last)
  expect(await grid.getAttribute('aria-rowcount'), '10001', 'rows of the grid with its head')
  const rows = await page.locator('.vrows [role=row]').count()
  require(rows < 100, `${rows} rows in the document`)
  const frames = await page.evaluate(() => new Promise((done) => {
    const list = document.querySelector('.vlist')
    const times = []
    let before = performance.now()
    list.scrollTop = 0
    const step = (now) => {
      times.push(now - before)
      before = now
      list.scrollTop += 1700
      if (times.length < 200) requestAnimationFrame(step)
      else done(times.slice(1).sort((left, right) => left - right))
    }
    requestAnimationFrame(step)
  }))
  const text = (value) => `${value.toFixed(1)} ms`
  console.log(`# dashboard: 10,000 clients scrolled in 200 frames: median ${text(frames[100])}, 99th percentile ${text(frames[197])}, longest ${text(frames.at(-1))}`)
  require(!(await page.locator('.vrows').innerText()).includes('loading'), 'rows that were loaded are shown at once')
})

// === Errors and sign-in ===

scenario('errors/shown', { only: 'mock' }, async (stage) => {
  const { page } = stage
  stage.tolerated = [/Failed to load resource/]
  const answers = [
    [{ status: 503, contentType: 'application/problem+json', body: JSON.stringify({ type: 'about:blank', title: 'Service Unavailable', status: 503, detail: 'The store has failed' }) }, 'Service Unavailable: The store has failed'],
    [{ status: 502, contentType: 'text/html', body: '<h1>Bad gateway</h1>' }, 'The broker answered with status 502.'],
    [null, 'The broker does not answer.'],
  ]
  for (const [answer, wanted] of answers) {
    await page.route('**/api/v1/**', (route) => (answer ? route.fulfill(answer) : route.abort()))
    await stage.visit('listeners')
    await page.reload()
    await stage.text('main > .problem', wanted.replaceAll('.', '\\.'))
    await page.unroute('**/api/v1/**')
  }
  await stage.text('#status', '^✕\\s*no answer')
  await stage.until(() => document.querySelector('main > .problem').hidden, null, 'the error goes when the broker answers again')
})

scenario('errors/client-unknown', { only: 'mock' }, async (stage) => {
  stage.tolerated = [/404/]
  await stage.visit('clients/nobody%2F1')
  await stage.text('main > .problem', 'Not Found: No client nobody/1$')
})

scenario('errors/viewer', { only: 'mock' }, async (stage) => {
  const { page } = stage
  stage.tolerated = [/403/]
  stage.mock.isViewer = true
  await stage.visit('bans')
  await page.getByRole('button', { name: 'Lift the ban of scanner-3' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Lift the ban' }).click()
  await stage.text('main > .problem', 'Forbidden: The role viewer may only read')
  expect(stage.mock.world.bans.length, 2, 'bans')
})

scenario('sign-in/password', { only: 'mock' }, async (stage) => {
  const { page, mock } = stage
  stage.tolerated = [/401/]
  Object.assign(mock, { user: 'ops', password: 'pässword:1' })
  const answer = async (password) => {
    await page.getByLabel('User', { exact: true }).fill('ops')
    await page.getByLabel('Password', { exact: true }).fill(password)
    await page.keyboard.press('Enter')
  }
  await stage.visit('listeners')
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
  await answer('wrong')
  await stage.text('dialog [role=alert]', 'did not accept')
  await answer('pässword:1')
  await stage.text('main', 'not available')
  await stage.text('#session', 'Sign out ops')
  expect(await page.evaluate(() => [sessionStorage.length, Object.keys(localStorage).filter((key) => key !== 'braidmq-theme')]), [0, []], 'what is stored')
  await page.reload()
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
  await answer('pässword:1')
  await stage.text('main', 'not available')
  await page.getByRole('button', { name: 'Sign out ops' }).click()
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
})

scenario('sign-in/declined', { only: 'mock' }, async (stage) => {
  const { page, mock } = stage
  stage.tolerated = [/401/]
  Object.assign(mock, { user: 'ops', password: 'x' })
  await page.clock.install()
  await stage.visit('listeners')
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
  await page.keyboard.press('Escape')
  await stage.text('main > .problem', 'Sign in to see this\\.')
  await page.clock.runFor(20_000)
  expect(await page.getByRole('dialog').count(), 0, 'dialogs after further polls')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByLabel('Token', { exact: true }).check()
  await page.getByLabel('Token (JWT)').fill(' a.b.c ')
  const request = page.waitForRequest((one) => one.headers().authorization === 'Bearer a.b.c')
  await page.getByRole('dialog').getByRole('button', { name: 'Sign in' }).click()
  await request
})

// === Bans and configuration ===

scenario('bans/add-and-lift', { only: 'mock' }, async (stage) => {
  const { page, mock } = stage
  await stage.visit('bans')
  await page.getByLabel('Kind').selectOption('addresses')
  await page.getByLabel('Client, user or network').fill('2001:db8::/32')
  await page.getByLabel('Minutes').fill('30')
  await page.getByRole('button', { name: 'Ban', exact: true }).click()
  await stage.text('main', '2001:db8::/32')
  expect(mock.world.bans[2].addresses, '2001:db8::/32', 'banned')
  await page.getByRole('button', { name: 'Lift the ban of 2001:db8::/32' }).click()
  await page.keyboard.press('Escape')
  expect(mock.world.bans.length, 3, 'bans after Escape')
  await page.getByRole('button', { name: 'Lift the ban of 2001:db8::/32' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Lift the ban' }).click()
  await stage.until(() => !document.querySelector('main').innerText.includes('2001:db8'), null, 'the ban is gone')
  expect(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), 'Lift the ban of 203.0.113.0/24', 'the focus after the row is gone')
})

scenario('bans/more-than-a-page', { only: 'mock' }, async (stage) => {
  const { world } = stage.mock
  await stage.visit('bans')
  await stage.until(() => document.querySelectorAll('main tbody tr').length === 2, null, 'all bans')
  expect(await stage.page.getByText('The first').isVisible(), false, 'a note while all are shown')
  for (let number = 0; number < 1000; number += 1) world.bans.push({ user: `user-${number}`, reason: '', expires_at: null })
  await stage.visit('listeners')
  await stage.visit('bans')
  await stage.text('main', 'The first 1,000 of 1,002\\.')
  expect(await stage.page.locator('main tbody tr').count(), 1000, 'rows')
})

scenario('config/reload', { only: 'mock' }, async (stage) => {
  const { page, mock } = stage
  stage.tolerated = [/422/]
  const reload = async () => {
    await page.getByRole('button', { name: 'Reload …' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Reload' }).click()
  }
  await stage.visit('config')
  await reload()
  await stage.text('#notices', 'Reloaded: certificates, rules')
  mock.world.brokenFile = 'rules.acl:7: the action is missing'
  await reload()
  await stage.text('main > .problem', 'rules\\.acl:7')
  await page.getByLabel('Find').fill('bbr')
  await stage.until(() => document.querySelectorAll('tbody tr').length === 1, null, 'one setting is left')
})
