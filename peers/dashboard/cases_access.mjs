// Keyboard, names, contrast and narrow screens.

import { readFileSync } from 'node:fs'

import { EDGE } from './world.mjs'
import { AXE, VIEWS, expect, require, scenario } from './stage.mjs'

const PAGES = [...VIEWS, [`clients/${EDGE}`, EDGE], ['topics?topic=plant%2Fhamburg%2Fstate%2Fline-1', 'Topics']]
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']

/** Violations of WCAG on the page, one line each. */
async function violations(page) {
  // Through the debugger: the policy of the page forbids a script tag.
  await page.evaluate(readFileSync(AXE, 'utf8'))
  const found = await page.evaluate((tags) => window.axe.run({ runOnly: tags }), RULES)
  return found.violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target.join(' ')}: ${failureSummary.split('\n')[1]?.trim()}`))
}

for (const scheme of ['light', 'dark']) {
  for (const [hash, heading] of PAGES) {
    const isOfMock = hash.includes('/') || hash.includes('?')
    scenario(`access/${scheme}/${hash.split('?')[0].replace(EDGE, 'client') || 'overview'}${hash.includes('?') ? '-topic' : ''}`, { only: isOfMock ? 'mock' : null }, async (stage) => {
      await stage.page.emulateMedia({ colorScheme: scheme })
      await stage.visit(hash, heading)
      await stage.signIn()
      await stage.text('#status', '^(✓|!|■|✕)\\s*\\w+')
      if (hash.includes('/')) await stage.text('main', '8 bulk')
      if (hash.includes('?')) await stage.text('main', '"speed_rpm"')
      expect(await violations(stage.page), [], 'violations')
    })
  }
}

scenario('access/dialogs', { only: 'mock' }, async (stage) => {
  const { page, mock } = stage
  stage.tolerated = [/401/]
  await stage.visit('bans')
  await page.getByRole('button', { name: 'Lift the ban of scanner-3' }).click()
  expect(await violations(page), [], 'violations of the question')
  mock.user = 'ops'
  await page.reload()
  await page.getByRole('dialog', { name: 'Sign in' }).waitFor()
  expect(await violations(page), [], 'violations of sign-in')
})

/** True if the focused element, or the row that it points to, has a visible outline. */
const isOutlined = (page) => page.evaluate(() => {
  const { activeElement: focused } = document
  const candidates = [focused, document.getElementById(focused.getAttribute('aria-activedescendant')), focused.querySelector('.tree-row')]
  return candidates.some((one) => one && getComputedStyle(one).outlineStyle !== 'none' && parseFloat(getComputedStyle(one).outlineWidth) >= 2)
})

scenario('access/keyboard', { only: 'mock' }, async (stage) => {
  const { page } = stage
  const press = async (key, times = 1) => {
    for (let at = 0; at < times; at += 1) await page.keyboard.press(key)
  }
  const focused = () => page.evaluate(() => document.activeElement.innerText || document.activeElement.getAttribute('aria-label') || document.activeElement.id)
  await stage.visit('')
  await stage.text('main', 'Connected clients')
  await press('Tab')
  expect(await focused(), 'Skip to the content', 'first stop')
  await press('Enter')
  expect(await page.evaluate(() => document.activeElement.id), 'main', 'after the skip link')
  await press('Tab')
  require(!(await page.evaluate(() => document.activeElement.closest('nav, header'))), 'the next stop is in the content')
  await page.reload()
  await stage.text('main', 'Connected clients')
  const stops = []
  for (let at = 0; at < 14; at += 1) {
    await press('Tab')
    stops.push(await focused())
    require(await isOutlined(page), `${stops.at(-1)} has no visible focus`)
    if (stops.at(-1) === 'Clients') break
  }
  expect(stops.map((stop) => stop.replace(/^[^A-Z]+/, '')), ['Skip to the content', 'BraidMQ', 'Sign in', 'Dark', 'Overview', 'Clients'], 'order of the focus')
  await press('Enter')
  await stage.text('h1', 'Clients')
  await stage.text('.vrows', 'camera-')
  await press('Tab', 5)
  expect(await focused().then((text) => text.split('\n')[0]), 'Client', 'the grid has the focus')
  const second = stage.mock.world.clients[2].client_id
  await press('ArrowDown', 2)
  await stage.text('.vrow[aria-selected=true]:not([hidden])', second)
  require(await isOutlined(page), 'the chosen row has no visible focus')
  await press('PageDown')
  await press('Home')
  await press('ArrowDown', 2)
  await press('Enter')
  await stage.text('h1', second)
  // Back to the list, and the keyboard leaves the grid again.
  await press('Tab')
  expect(await focused(), '← Clients', 'first stop of a client')
  await press('Enter')
  await stage.text('h1', 'Clients')
})

scenario('access/dialog-focus', { only: 'mock' }, async (stage) => {
  const { page } = stage
  await stage.visit(`clients/${EDGE}`)
  await stage.text('.chip', 'connected')
  await page.getByRole('button', { name: 'Disconnect …' }).focus()
  await page.keyboard.press('Enter')
  expect(await page.evaluate(() => document.activeElement.innerText), 'Cancel', 'the harmless button has the focus')
  for (let at = 0; at < 4; at += 1) {
    await page.keyboard.press('Tab')
    require(await page.evaluate(() => document.activeElement === document.body || document.activeElement.closest('dialog') !== null), 'the focus stays in the dialog')
  }
  await page.keyboard.press('Escape')
  expect(await page.evaluate(() => document.activeElement.innerText), 'Disconnect …', 'the focus after Escape')
})

scenario('access/narrow', {}, async (stage) => {
  const { page } = stage
  await page.setViewportSize({ width: 360, height: 700 })
  const pages = stage.mock ? PAGES : VIEWS
  stage.tolerated = [/404/]
  await stage.visit('')
  await stage.signIn()
  for (const [hash, heading] of pages) {
    await stage.visit(hash, heading)
    if (hash.startsWith('clients/')) await stage.text('main', '8 bulk')
    const width = await page.evaluate(() => document.documentElement.scrollWidth)
    require(width <= 360, `${heading} is ${width} pixels wide`)
  }
})
