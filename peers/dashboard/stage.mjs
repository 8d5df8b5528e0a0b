// Stage of one case of the dashboard: a mock of its own or a broker, a fresh page, and what no page may do.

import { createRequire } from 'node:module'

import { Mismatch, expect, require } from '../mqttjs/suite.mjs'
import { Mock } from './mock.mjs'
import { URL_OF_BROKER } from './traffic.mjs'

const modules = createRequire(`${process.env.PEERS_NODE_MODULES}/`)
const { chromium } = modules('playwright-core')
export const AXE = modules.resolve('axe-core/axe.min.js')

const WAIT = 8000
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync']
/** Views: path in the hash and heading. */
export const VIEWS = [
  ['', 'Overview'], ['clients', 'Clients'], ['topics', 'Topics'], ['console', 'Console'], ['events', 'Events'],
  ['bans', 'Bans'], ['listeners', 'Listeners'], ['config', 'Configuration'], ['autoquic', 'Auto QUIC'],
]

export const cases = []
let browser = null

/** The browser of all cases; a missing one fails every case. */
export async function launch() {
  browser ??= await chromium.launch({ executablePath: process.env.PEERS_CHROMIUM ?? '/usr/bin/chromium', args: FLAGS })
  return browser
}

export async function close() {
  await browser?.close()
}

export class Stage {
  #problems = []
  #contexts = []
  /** Messages of the console that a case provokes. */
  tolerated = []

  async begin(mock) {
    this.mock = mock
    this.url = mock?.url ?? URL_OF_BROKER
    this.page = await this.open()
  }

  /** Opens another page in a context of its own. */
  async open(options = {}) {
    const context = await (await launch()).newContext({ viewport: { width: 1280, height: 800 }, ...options })
    this.#contexts.push(context)
    const page = await context.newPage()
    page.setDefaultTimeout(WAIT)
    await page.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) => console.error(`CSP violation: ${event.violatedDirective} ${event.blockedURI}`))
    })
    page.on('pageerror', (error) => this.#problems.push(`exception: ${error.message}`))
    page.on('console', (message) => {
      if (message.type() === 'error' || message.type() === 'warning') this.#problems.push(`console: ${message.text()}`)
    })
    page.on('request', (request) => {
      if (!request.url().startsWith(this.url) && !request.url().startsWith('data:')) this.#problems.push(`request to ${request.url()}`)
    })
    return page
  }

  /** Opens a view and waits for its heading. */
  async visit(hash, heading = null, page = this.page) {
    await page.goto(`${this.url}#/${hash}`)
    await page.locator('h1', heading === null ? {} : { hasText: heading }).waitFor()
  }

  /** Waits until the function of the page is true. */
  async until(body, argument, what) {
    await this.page.waitForFunction(body, argument, { timeout: WAIT, polling: 50 }).catch(() => {
      throw new Mismatch(`not within ${WAIT / 1000} s: ${what}`)
    })
  }

  /** Waits until the text of the first element is as wanted. */
  async text(selector, wanted) {
    await this.until(([one, pattern]) => new RegExp(pattern, 'u').test(document.querySelector(one)?.innerText ?? ''), [selector, wanted], `${wanted} in ${selector}`)
  }

  /** Resolves with the next answer to a request of the API. */
  hears(path) {
    const answer = this.page.waitForResponse(`**/api/v1/${path}*`)
    // The case may fail before it waits for it.
    answer.catch(() => {})
    return answer
  }

  /** Signs in to the broker if the environment has credentials. */
  async signIn(page = this.page) {
    const [user, password] = [process.env.PEERS_DASHBOARD_USER, process.env.PEERS_DASHBOARD_PASSWORD]
    if (this.mock || !user) return
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByLabel('User', { exact: true }).fill(user)
    await page.getByLabel('Password', { exact: true }).fill(password ?? '')
    await page.getByRole('dialog').getByRole('button', { name: 'Sign in' }).click()
  }

  /** The errors that the page shows. */
  problem() {
    return this.page.locator('main > .problem').innerText()
  }

  async end(isFine) {
    for (const context of this.#contexts) await context.close()
    await this.mock?.close()
    const found = this.#problems.filter((text) => !this.tolerated.some((pattern) => pattern.test(text)))
    if (isFine) expect(found, [], 'exceptions, errors in the console, violations of the policy, foreign requests')
  }
}

/**
 * Adds a case, for the mock and, if `both` is set, for a broker. `only` names the one that has what the case needs. With
 * PEERS_DASHBOARD the broker there is the only one.
 */
export function scenario(label, { only = null, both = false, clients = 600, ...options }, body) {
  const isOther = process.env.PEERS_DASHBOARD !== undefined
  if (only !== 'broker' && !isOther) add(`dashboard/${label}`, () => Mock.start({ clients, ...options }), body)
  const isForBroker = isOther ? only === null : only === 'broker' || both
  if (isForBroker) add(`dashboard/broker/${label}`.replace('broker/broker', 'broker'), () => null, body)
}

function add(name, start, body) {
  cases.push({
    name,
    body: async () => {
      const stage = new Stage()
      let isFine = false
      await stage.begin(await start())
      try {
        await body(stage)
        isFine = true
      } finally {
        await stage.end(isFine)
      }
    },
  })
}

/** Number of different pictures of a lane in the frames of 0.4 seconds. */
export const pictures = (stage, lane) => stage.page.evaluate((selector) => new Promise((done) => {
  const canvas = document.querySelector(`${selector} canvas`)
  const seen = new Set()
  let begin = null
  const step = (now) => {
    begin ??= now
    seen.add(canvas.toDataURL())
    if (now - begin < 400) requestAnimationFrame(step)
    else done(seen.size)
  }
  requestAnimationFrame(step)
}), lane)

export { expect, require }
