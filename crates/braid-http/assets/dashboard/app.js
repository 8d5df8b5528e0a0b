// Shell of the dashboard: routes in the hash, navigation, status, sign-in state and colour scheme.

import { every, get, signIn, signOut, signedIn } from './api.js'
import { h, setAttribute, setText } from './dom.js'
import { duration } from './format.js'
import * as history from './history.js'
import overview from './overview.js'
import clients from './clients.js'
import client from './client.js'
import topics from './topics.js'
import mqttConsole from './console.js'
import events from './events.js'
import { autoquic, bans, config, listeners } from './lists.js'

/** Path in the hash, label, view, view of one element. */
const VIEWS = [
	['', 'Overview', overview], ['clients', 'Clients', clients, client], ['topics', 'Topics', topics], ['console', 'Console', mqttConsole], ['events', 'Events', events],
	['bans', 'Bans', bans], ['listeners', 'Listeners', listeners], ['config', 'Configuration', config], ['autoquic', 'Auto QUIC', autoquic],
]
/** Status of the broker: symbol and class. A word that is not listed is shown as it is. */
const STATUS = { serving: ['✓', 'good'], refusing: ['!', 'warn'], stopping: ['■', 'warn'], failed: ['✕', 'bad'] }
const STATUS_INTERVAL = 5000

const byId = (id) => document.getElementById(id)
const [main, nav] = [byId('main'), byId('nav')]
let current = null

/** Reads `#/clients/ID?filter=x` as {parts, query}. */
function route() {
	const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?')
	return { parts: path.split('/').map(decode), query: Object.fromEntries(new URLSearchParams(query)) }
}

function decode(part) {
	try {
		return decodeURIComponent(part)
	} catch {
		return part
	}
}

function show() {
	const { parts, query } = route()
	const [path, label, list, detail] = VIEWS.find(([name]) => name === parts[0]) ?? [null, 'There is no such view', () => {}]
	const isDetail = detail && parts.length > 1
	current?.abort()
	current = new AbortController()
	const title = isDetail ? parts[1] : label
	document.title = `${title} – BraidMQ`
	for (const link of nav.querySelectorAll('a')) setAttribute(link, 'aria-current', link.hash === `#/${path}` ? 'page' : null)
	const problem = h('p.problem', { role: 'alert', hidden: true })
	// Each source of errors clears its own only.
	const problems = new Map()
	const report = (error, source) => {
		if (error) problems.set(source, error.message)
		else problems.delete(source)
		problem.hidden = problems.size === 0
		setText(problem, [...new Set(problems.values())].join(' '))
	}
	const head = h('div.view-head', h('h1', title))
	const body = h('div.view')
	main.replaceChildren(head, problem, body)
	scrollTo(0, 0)
	/** Reports the failure of an action of the user, or goes on with its result. */
	const attempt = (action, done = () => {}) => action.then((result) => {
		report(null)
		return done(result)
	}).catch(report)
	const context = { signal: current.signal, report, attempt, query, head, body, parts }
	if (isDetail) detail(context)
	else list(context)
}

function watchStatus() {
	const status = byId('status')
	const [symbol, word, detail] = [h('span.symbol', { 'aria-hidden': 'true' }), h('span'), h('span.muted')]
	status.append(symbol, word, detail)
	const write = (mark, kind, text, more) => {
		status.className = `status ${kind}`
		setText(symbol, mark)
		setText(word, text)
		setText(detail, more)
	}
	history.listen((now) => {
		const [mark, kind] = STATUS[now.status] ?? ['?', 'warn']
		write(mark, kind, now.status, `up ${duration(now.uptime_secs)} · ${now.version}`)
	})
	every(STATUS_INTERVAL, async () => {
		// The overview asks more often; its answers count here too.
		if (history.age() > STATUS_INTERVAL / 2) history.add(await get('overview'))
	}, {
		signal: new AbortController().signal,
		report: (error) => {
			if (error) write('✕', 'bad', error.status ? 'no access' : 'no answer', error.status ? '' : 'The broker may be stopped')
			drawSession()
		},
	})
}

function drawSession() {
	setText(byId('session'), signedIn() ? `Sign out ${signedIn()}` : 'Sign in')
}

function watchTheme() {
	const button = byId('theme')
	const dark = matchMedia('(prefers-color-scheme: dark)')
	const root = document.documentElement
	const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches)
	const draw = () => setText(button, isDark() ? '☀ Light' : '☾ Dark')
	root.dataset.theme = localStorage.getItem('braidmq-theme') ?? ''
	button.addEventListener('click', () => {
		root.dataset.theme = isDark() ? 'light' : 'dark'
		localStorage.setItem('braidmq-theme', root.dataset.theme)
		draw()
		document.dispatchEvent(new Event('theme'))
	})
	dark.addEventListener('change', draw)
	draw()
}

document.querySelector('.skip').addEventListener('click', (event) => {
	event.preventDefault()
	main.focus()
})
byId('session').addEventListener('click', () => (signedIn() ? signOut() : signIn()))
window.addEventListener('hashchange', () => {
	show()
	main.focus({ preventScroll: true })
})
nav.append(h('ul', VIEWS.map(([path, label]) => h('li', h('a', { href: `#/${path}` },
	h('svg.icon', { 'aria-hidden': 'true' }, h('use', { href: `#i-${path || 'overview'}` })), label)))))
watchTheme()
watchStatus()
drawSession()
show()
