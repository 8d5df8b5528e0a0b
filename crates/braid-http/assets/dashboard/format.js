// Numbers, sizes, times and payloads as text. '–' stands for a value that is not known.

export const TRANSPORTS = ['tcp', 'tls', 'ws', 'wss', 'quic']
const NONE = '–'
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

const known = (value) => typeof value === 'number' && Number.isFinite(value)

/** Whole number with separators of thousands. */
export const count = (value) => (known(value) ? whole.format(value) : NONE)

/** Number with few significant digits: 3.4, 1,204, 2.41 M. */
export function short(value) {
	if (!known(value)) return NONE
	if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`
	if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`
	return value >= 10 || value === 0 ? whole.format(value) : value.toFixed(1)
}

/** Number in a second. */
export const perSecond = (value) => (known(value) ? `${short(value)}/s` : NONE)

/** Size in units of 1024 bytes. */
export function bytes(value) {
	if (!known(value)) return NONE
	const unit = Math.min(5, Math.floor(Math.log2(Math.max(1, value)) / 10))
	const scaled = value / 1024 ** unit
	return `${unit === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)} ${UNITS[unit]}`
}

/** Bytes in a second. */
export const bytesPerSecond = (value) => (known(value) ? `${bytes(value)}/s` : NONE)

/** Length of time, in seconds. */
export function duration(seconds) {
	if (!known(seconds)) return NONE
	const part = (size, name, small, smallName) => `${Math.floor(seconds / size)} ${name} ${Math.floor((seconds % size) / small)} ${smallName}`
	if (seconds < 60) return `${Math.floor(seconds)} s`
	if (seconds < 3600) return part(60, 'min', 1, 's')
	return seconds < 86400 ? part(3600, 'h', 60, 'min') : part(86400, 'd', 3600, 'h')
}

/** Milliseconds, in seconds above 1,000. */
export function milliseconds(value) {
	if (!known(value)) return NONE
	if (value >= 60000) return duration(value / 1000)
	if (value >= 1000) return `${(value / 1000).toFixed(1)} s`
	return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`
}

/** Share as a percentage. */
export const percent = (ratio) => (known(ratio) ? `${(ratio * 100).toFixed(ratio > 0 && ratio < 0.1 ? 2 : 0)} %` : NONE)

/** Time since a moment in seconds of the Unix epoch. */
export const since = (at) => (known(at) ? `${duration(Math.max(0, Date.now() / 1000 - at))} ago` : NONE)

/** Local time of day, with the date if it is another day. */
export function clock(at) {
	if (!known(at)) return NONE
	const text = (moment) => new Date(moment - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace('T', ' ')
	const [date, time] = text(at * 1000).split(' ')
	return text(Date.now()).startsWith(date) ? time : `${date} ${time}`
}

/** Next value of 1, 2, 5, 10, ... that is not below the given one. */
export function roundUp(value) {
	const power = 10 ** Math.floor(Math.log10(value))
	return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999)
}

/** Next power of two that is not below the value. */
export const powerOfTwo = (value) => 2 ** Math.ceil(Math.log2(Math.max(1, value)))

const TEXT_LIMIT = 65536
const HEX_LIMIT = 4096
/** Depth of JSON up to which it is indented: the spaces grow with the square of it. */
const DEPTH_LIMIT = 100

/** Depth of the brackets outside of strings. */
function depth(text) {
	let [open, most, isQuoted] = [0, 0, false]
	for (let at = 0; at < text.length; at += 1) {
		const character = text[at]
		if (isQuoted) {
			if (character === '\\') at += 1
			else if (character === '"') isQuoted = false
		} else if (character === '"') isQuoted = true
		else if (character === '[' || character === '{') most = Math.max(most, ++open)
		else if (character === ']' || character === '}') open -= 1
	}
	return most
}

/** Payload for reading: {kind: 'JSON' | 'text' | 'binary' | 'empty', text}. */
export function payload(data) {
	const shorten = (limit, write) => write(data.subarray(0, limit)) + (data.length > limit ? `\n… ${bytes(data.length - limit)} more` : '')
	let text
	try {
		// A cut inside a character is no error.
		text = shorten(TEXT_LIMIT, (part) => new TextDecoder('utf-8', { fatal: true }).decode(part, { stream: data.length > TEXT_LIMIT }))
	} catch {
		return { kind: 'binary', text: shorten(HEX_LIMIT, hex) }
	}
	// Control characters other than tab and line ends would not be visible.
	if (/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text)) return { kind: 'binary', text: shorten(HEX_LIMIT, hex) }
	try {
		if (/^\s*[[{]/.test(text)) {
			const value = JSON.parse(text)
			const indented = depth(text) <= DEPTH_LIMIT ? JSON.stringify(value, null, 2) : null
			return { kind: 'JSON', text: indented && indented.length <= TEXT_LIMIT ? indented : text }
		}
	} catch {
		// Text that only begins like JSON, or is cut.
	}
	return { kind: text ? 'text' : 'empty', text }
}

/** Hex dump: offset, 16 bytes, ASCII. */
function hex(data) {
	const lines = []
	for (let at = 0; at < data.length; at += 16) {
		const row = [...data.subarray(at, at + 16)]
		const digits = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ')
		const ascii = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('')
		lines.push(`${at.toString(16).padStart(4, '0')}  ${digits.padEnd(47)}  ${ascii}`)
	}
	return lines.join('\n')
}

/** Bytes of a base64 text. */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
