// Page about the REST API: reads openapi.json, shows each operation, and sends requests.

const main = document.getElementById('main')
const login = document.getElementById('login')
const LONGEST = 200000

/** Element with attributes and children. */
function h(name, attributes = {}, ...children) {
	const element = document.createElement(name)
	for (const [key, value] of Object.entries(attributes)) {
		if (typeof value === 'function') element.addEventListener(key, value)
		else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value)
	}
	element.append(...children.flat().filter((child) => child !== undefined && child !== null))
	return element
}

function authorization() {
	const { user, password, token } = login.elements
	if (token.value.trim()) return `Bearer ${token.value.trim()}`
	if (!user.value) return null
	return `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(`${user.value}:${password.value}`)))}`
}

/** Schema with its references resolved. */
function resolve(schema, document) {
	while (schema?.$ref) schema = document.components.schemas[schema.$ref.split('/').pop()]
	return schema ?? {}
}

/** Example of a schema: required fields, and those of simple types. */
function example(schema, document, depth = 0) {
	const { type, properties = {}, required = [], items, enum: words, oneOf, allOf } = resolve(schema, document)
	if (words) return words[0]
	if (allOf) return Object.assign({}, ...allOf.map((one) => example(one, document, depth)))
	if (oneOf) return example(oneOf.find((one) => one.type !== 'null') ?? oneOf[0], document, depth)
	const kind = Array.isArray(type) ? type.find((one) => one !== 'null') : type
	if (kind === 'object' && depth < 3) return Object.fromEntries(Object.entries(properties).filter(([name]) => required.includes(name)).map(([name, one]) => [name, example(one, document, depth + 1)]))
	if (kind === 'array') return items && depth < 2 ? [example(items, document, depth + 1)] : []
	return { string: '', integer: 0, number: 0, boolean: false }[kind] ?? null
}

/** Sends a request and shows the response as it arrives. */
async function send(method, path, body, signal, show) {
	const headers = { accept: 'application/json, text/event-stream' }
	const value = authorization()
	if (value) headers.authorization = value
	if (body !== null) headers['content-type'] = 'application/json'
	const response = await fetch(path, { method, headers, body, signal, credentials: 'omit', cache: 'no-store' })
	let text = `${response.status} ${response.statusText}\n`
	show(text)
	const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
	let content = ''
	let isCut = false
	for (;;) {
		const { value: part, done } = (await reader?.read()) ?? { done: true }
		if (done) break
		content += part
		if (content.length > LONGEST) {
			if (!isCut) text += `… the last ${LONGEST} characters:\n`
			isCut = true
			content = content.slice(-LONGEST)
		}
		show(text + content)
	}
	if (!isCut && /json/.test(response.headers.get('content-type') ?? '')) text += JSON.stringify(JSON.parse(content), null, 2)
	else text += content
	show(text)
}

function operation(path, method, about, document) {
	const inputs = (about.parameters ?? []).map((one) => [one, h('input', { name: one.name, required: one.required, placeholder: one.required ? undefined : 'optional' })])
	const schema = about.requestBody?.content?.['application/json']?.schema
	const body = schema && h('textarea', { rows: 6, spellcheck: 'false', 'aria-label': 'Body' }, JSON.stringify(example(schema, document), null, 2))
	const output = h('pre', { hidden: true, tabindex: 0, 'aria-live': 'polite' })
	let running = null
	const stop = h('button', { type: 'button', hidden: true, click: () => running?.abort() }, 'Stop')
	const submit = async (event) => {
		event.preventDefault()
		running?.abort()
		const own = (running = new AbortController())
		const query = new URLSearchParams()
		let target = path
		for (const [{ name, in: where }, input] of inputs) {
			if (where === 'path') target = target.replace(`{${name}}`, encodeURIComponent(input.value))
			else if (input.value) query.set(name, input.value)
		}
		if (query.size) target += `?${query}`
		output.hidden = stop.hidden = false
		const show = (text) => { if (own === running) output.textContent = `${method.toUpperCase()} ${target}\n${text}` }
		try {
			await send(method.toUpperCase(), target, body ? body.value : null, own.signal, show)
		} catch (error) {
			if (error.name !== 'AbortError') show(String(error))
		}
		if (own === running) stop.hidden = true
	}
	const fields = inputs.map(([one, input]) => h('label', { title: one.description }, one.name, input))
	const codes = Object.entries(about.responses).map(([status, one]) => `${status}${one.description ? ` ${one.description}` : ''}`).join(' · ')
	return h('details', {}, h('summary', {}, h('b', { class: method }, method.toUpperCase()), ` ${path}`),
		h('p', {}, about.description), h('form', { submit }, fields, body && h('label', { class: 'wide' }, 'Body', body), h('button', {}, 'Send'), stop),
		output, h('p', {}, h('small', {}, codes)))
}

async function begin() {
	const document = await (await fetch('/api/v1/openapi.json')).json()
	const groups = new Map()
	for (const [path, item] of Object.entries(document.paths)) {
		for (const [method, about] of Object.entries(item)) {
			const tag = about.tags?.[0] ?? 'other'
			groups.set(tag, [...(groups.get(tag) ?? []), operation(path, method, about, document)])
		}
	}
	main.replaceChildren(h('p', {}, `${document.info.description} Version ${document.info.version}.`), ...[...groups].flatMap(([tag, list]) => [h('h2', {}, tag), ...list]))
}

login.addEventListener('submit', (event) => event.preventDefault())
begin().catch((error) => { main.replaceChildren(h('p', { role: 'alert' }, `The document cannot be read: ${error}`)) })
