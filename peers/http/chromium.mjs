// Headless Chromium over HTTP/3 with the certificate of the broker: forced, and by Alt-Svc.

import { X509Certificate, createHash } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'

import { expect, require } from '../mqttjs/suite.mjs'

const { chromium } = createRequire(`${process.env.PEERS_NODE_MODULES}/`)('playwright-core')

const ORIGIN = `localhost:${process.env.PEERS_WEB_HTTP}`
const VIEWER = { user: 'vera', password: 'viewer-password' }
const OPERATOR = { user: 'olga', password: 'operator-password' }
const WAIT = 8000

export const cases = []

/** Hash of the public key, by which Chromium accepts a certificate that no authority has signed. */
function keyHash() {
  const { publicKey } = new X509Certificate(readFileSync(process.env.PEERS_WEB_CA))
  return createHash('sha256').update(publicKey.export({ type: 'spki', format: 'der' })).digest('base64')
}

/** Adds a case with a browser of its own, so that none knows of HTTP/3 before. */
function scenario(label, flags, body) {
  cases.push({
    name: `http/chromium/${label}`,
    body: async () => {
      const browser = await chromium.launch({
        executablePath: process.env.PEERS_CHROMIUM ?? '/usr/bin/chromium',
        args: ['--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--enable-quic', '--host-resolver-rules=MAP localhost 127.0.0.1', `--ignore-certificate-errors-spki-list=${keyHash()}`, ...flags],
      })
      try {
        const page = await browser.newPage()
        page.setDefaultTimeout(WAIT)
        await body(page)
      } finally {
        await browser.close()
      }
    },
  })
}

/** Paths of the page and of all that it has loaded, with their protocols. The browser asks for its icon when it likes. */
const protocols = (page) => page.evaluate(() => performance.getEntries()
  .filter(({ entryType }) => entryType === 'navigation' || entryType === 'resource')
  .map(({ name, nextHopProtocol }) => [new URL(name).pathname, nextHopProtocol])
  .filter(([path]) => path !== '/favicon.ico'))

/** Sends a request of the page; status, content type, text, and protocol. */
const ask = (page, path, { user, password, ...options } = {}) => page.evaluate(async ([target, init, login]) => {
  const headers = { ...init.headers, ...(login && { authorization: `Basic ${btoa(login)}` }) }
  performance.clearResourceTimings()
  // With `omit` the browser does not ask for a password.
  const response = await fetch(target, { ...init, headers, cache: 'no-store', credentials: 'omit' })
  const text = await response.text()
  const [entry] = performance.getEntriesByType('resource').slice(-1)
  return { status: response.status, kind: response.headers.get('content-type'), text, protocol: entry?.nextHopProtocol }
}, [path, options, user && `${user}:${password}`])

const FORCED = [`--origin-to-force-quic-on=${ORIGIN}`]

scenario('forced/dashboard', FORCED, async (page) => {
  const errors = []
  page.on('pageerror', (error) => errors.push(error.message))
  await page.goto(`https://${ORIGIN}/`)
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
  await page.getByLabel('User', { exact: true }).fill(VIEWER.user)
  await page.getByLabel('Password', { exact: true }).fill(VIEWER.password)
  await page.keyboard.press('Enter')
  await page.waitForFunction(() => /^✓\s*serving/u.test(document.querySelector('#status').innerText))
  const found = await protocols(page)
  require(found.length > 15, `only ${found.length} responses`)
  require(found.some(([path]) => path === '/api/v1/overview'), 'the overview was read')
  expect(found.filter(([, protocol]) => protocol !== 'h3'), [], 'responses that did not come over HTTP/3')
  expect(errors, [], 'exceptions of the page')
})

scenario('forced/requests', FORCED, async (page) => {
  await page.goto(`https://${ORIGIN}/files/hello.txt`)
  expect(await protocols(page), [['/files/hello.txt', 'h3']], 'protocol of the file')
  const json = { 'content-type': 'application/json' }
  const message = (fields) => JSON.stringify({ topic: 'chromium/h3', payload: 'x', ...fields })
  const publish = { method: 'POST', headers: json, body: message() }
  for (const [path, options, status, kind] of [
    ['/health', {}, 200, 'application/json'],
    ['/metrics', VIEWER, 200, 'text/plain; version=0.0.4; charset=utf-8'],
    ['/api/v1/publish', { ...OPERATOR, ...publish }, 200, 'application/json'],
    ['/api/v1/publish', { ...VIEWER, ...publish }, 403, 'application/problem+json'],
    ['/api/v1/publish', { ...OPERATOR, ...publish, body: message({ retian: true }) }, 400, 'application/problem+json'],
    ['/api/v1/overview', {}, 401, 'application/problem+json'],
    ['/files/..%2fusers', {}, 404, 'application/problem+json'],
    [`/${'a'.repeat(9000)}`, {}, 414, 'application/problem+json'],
    ['/dead/x', {}, 502, 'application/problem+json'],
  ]) {
    const answer = await ask(page, path, options)
    const label = `${options.method ?? 'GET'} ${path.slice(0, 40)}`
    expect([answer.status, answer.kind, answer.protocol], [status, kind, 'h3'], label)
    if (status >= 400) expect(JSON.parse(answer.text).status, status, `status in the problem of ${label}`)
  }
})

scenario('forced/proxy', FORCED, async (page) => {
  const upstream = await serve((request, response) => {
    const parts = []
    request.on('data', (part) => parts.push(part))
    request.on('end', () => response.end(Buffer.concat(parts)))
  })
  try {
    await page.goto(`https://${ORIGIN}/files/hello.txt`)
    const body = 'grüße '.repeat(200_000)
    const answer = await ask(page, '/app/echo', { method: 'POST', body })
    expect([answer.status, answer.protocol], [200, 'h3'], 'a large body to the upstream')
    require(answer.text === body, 'the body came back as another')
  } finally {
    await upstream.end()
  }
})

/** Another port of the host, which allows certificates of unknown authorities over QUIC without forcing our origin. */
const NOT_FORCED = ['--origin-to-force-quic-on=localhost:1']

scenario('alt-svc', NOT_FORCED, async (page) => {
  // The automatic upgrade of this broker offers HTTP/3 to all.
  await page.goto(`https://${ORIGIN}/files/index.html`)
  expect((await protocols(page))[0], ['/files/index.html', 'h2'], 'protocol of the first page')
  const began = Date.now()
  const seen = []
  while (seen.at(-1) !== 'h3' && Date.now() - began < WAIT) seen.push((await ask(page, '/files/hello.txt')).protocol)
  expect(seen.at(-1), 'h3', `protocol after ${seen.length} requests`)
  for (const path of ['/health', '/metrics']) expect((await ask(page, path, VIEWER)).protocol, 'h3', `protocol of ${path}`)
})

/** The server behind `/app`. */
async function serve(handler) {
  const server = createServer(handler).listen({ fd: Number(process.env.PEERS_WEB_UPSTREAM_FD) })
  await once(server, 'listening')
  return { end: async () => {
    server.closeAllConnections()
    await new Promise((done) => server.close(done))
  } }
}
