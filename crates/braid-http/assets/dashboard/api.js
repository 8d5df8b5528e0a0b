// Requests to the REST API, server-sent events, and sign-in. Nothing is fetched while the tab is hidden.

import { field, h, modal } from './dom.js'

const BASE = new URL('api/v1/', document.baseURI)
const LONGEST_PAUSE = 30000

// In memory only: all pages of this origin could read a storage.
let authorization = null
let declined = false
let dialog = null

/** Answer that is not a success. */
export class Problem extends Error {
	constructor(status, message) {
		super(message)
		this.status = status
	}
}

/** User and password for MQTT over WebSocket, as far as sign-in knows them. */
export function credentials() {
	if (!authorization) return { user: '', password: '' }
	const [scheme, value] = authorization.split(' ')
	if (scheme === 'Bearer') return { user: '', password: value }
	const text = new TextDecoder().decode(Uint8Array.from(atob(value), (character) => character.charCodeAt(0)))
	const colon = text.indexOf(':')
	return { user: text.slice(0, colon), password: text.slice(colon + 1) }
}

/** Name of the signed-in user; null without one. */
export const signedIn = () => authorization && (credentials().user || 'token')

export const signOut = () => location.reload()

/** Asks for credentials, once for all that wait; false if declined. */
export function signIn(refused = false) {
	dialog ??= ask(refused).finally(() => { dialog = null })
	return dialog
}

async function ask(refused) {
	const user = h('input', { autofocus: true, autocomplete: 'username' })
	const password = h('input', { type: 'password', autocomplete: 'current-password' })
	const token = h('textarea', { rows: 3, spellcheck: 'false', autocomplete: 'off' })
	const byUser = h('div', field('User', user), field('Password', password))
	const byToken = h('div', { hidden: true }, field('Token (JWT)', token))
	const choice = (label, isToken) => h('label.choice', h('input', { type: 'radio', name: 'method', checked: !isToken, change: () => {
		byUser.hidden = isToken
		byToken.hidden = !isToken
	} }), label)
	const body = h('div', refused && h('p.problem', { role: 'alert' }, 'The broker did not accept these credentials.'),
		h('fieldset', h('legend.hidden', 'Method'), choice('User and password', false), choice('Token', true)),
		byUser, byToken)
	declined = !(await modal('Sign in', body, 'Sign in'))
	if (declined) return false
	authorization = byToken.hidden ? `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(`${user.value}:${password.value}`)))}` : `Bearer ${token.value.trim()}`
	document.dispatchEvent(new Event('signed-in'))
	return true
}

/** Sends a request and returns the response, after sign-in if the broker wants it. */
async function send(method, path, { body, signal, accept = 'application/json' } = {}) {
	for (;;) {
		const used = authorization
		const headers = { accept, ...(used && { authorization: used }), ...(body && { 'content-type': 'application/json' }) }
		let response
		try {
			// With `omit` the browser neither sends cookies nor shows its password window.
			response = await fetch(new URL(path, BASE), { method, headers, signal, credentials: 'omit', cache: 'no-store', body: body && JSON.stringify(body) })
		} catch (error) {
			if (error.name === 'AbortError') throw error
			throw new Problem(0, 'The broker does not answer.')
		}
		if (response.ok) return response
		if (response.status !== 401) {
			// A proxy may answer with a page of its own.
			const { title, detail } = await response.json().catch(() => ({}))
			throw new Problem(response.status, title ? `${title}: ${detail}` : `The broker answered with status ${response.status}.`)
		}
		// Another request may have signed in meanwhile.
		if (declined || (used === authorization && !(await signIn(used !== null)))) throw new Problem(401, 'Sign in to see this.')
	}
}

/** GET of a JSON document. */
export const get = async (path, signal) => (await send('GET', path, { signal })).json()

/** POST, PUT or DELETE; returns the JSON answer, or '' without one. */
export async function change(method, path, body) {
	const text = await (await send(method, path, { body })).text()
	return text && JSON.parse(text)
}

export function query(values) {
	const entries = Object.entries(values).filter(([, value]) => value)
	return entries.length ? `?${new URLSearchParams(entries)}` : ''
}

/** Address of the view of a client. */
export const clientHref = ({ client_id: id, mountpoint }) => `#/clients/${encodeURIComponent(id)}${query({ mountpoint })}`

// === What is repeated while it is looked at ===

/** Runs `start` now, when the tab is shown again and after sign-in, and `stop` before each and at the end. */
function watch(start, stop, signal) {
	const turn = () => {
		stop()
		if (!signal.aborted && !document.hidden) start()
	}
	for (const event of ['visibilitychange', 'signed-in']) document.addEventListener(event, turn, { signal })
	signal.addEventListener('abort', stop)
	turn()
	return turn
}

/**
 * Calls `action` now and `interval` milliseconds after each end, until the signal aborts. `report(error, source)` gets the
 * error of a call, or null. Returns a function that calls at once.
 */
export function every(interval, action, { signal, report }) {
	let timer
	let turn = 0
	const start = async () => {
		const own = (turn += 1)
		let failure = null
		try {
			await action()
		} catch (error) {
			failure = error
		}
		if (own !== turn || signal.aborted) return
		if (failure?.name !== 'AbortError') report(failure, start)
		timer = setTimeout(start, interval)
	}
	return watch(start, () => {
		turn += 1
		clearTimeout(timer)
	}, signal)
}

/**
 * Reads server-sent events until the signal aborts, and connects again after an end. `path()` may be null for none;
 * `receive(event, data)` gets the parsed data. Returns a function that connects anew.
 */
export function subscribe(path, receive, { signal, report }) {
	let current
	let timer
	let pause = 1000
	const start = async () => {
		const own = (current = new AbortController())
		const target = path()
		if (target === null) return
		try {
			const response = await send('GET', target, { signal: own.signal, accept: 'text/event-stream' })
			report(null, start)
			await read(response.body, (event, data) => {
				pause = 1000
				if (!own.signal.aborted) receive(event, data)
			})
		} catch (error) {
			if (!own.signal.aborted) report(error, start)
		}
		if (own.signal.aborted) return
		timer = setTimeout(start, pause)
		pause = Math.min(LONGEST_PAUSE, pause * 2)
	}
	return watch(start, () => {
		clearTimeout(timer)
		current?.abort()
	}, signal)
}

/** Parses the event stream format; EventSource cannot send an Authorization header. */
async function read(body, receive) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader()
	let rest = ''
	let event = 'message'
	let data = []
	for (;;) {
		const { value, done } = await reader.read()
		if (done) return
		const lines = (rest + value).split(/\r\n|\n|\r(?!$)/)
		rest = lines.pop()
		for (const line of lines) {
			const [, name, text] = /^([^:]*):? ?(.*)$/s.exec(line)
			if (line === '') {
				if (data.length) receive(event, JSON.parse(data.join('\n')))
				event = 'message'
				data = []
			} else if (name === 'event') event = text
			else if (name === 'data') data.push(text)
		}
	}
}
