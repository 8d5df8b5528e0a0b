// The answers of `overview` of the last five minutes, for the charts.

export const SPAN_SECS = 300

const samples = []
const listeners = new Set()
let last = null

/** Adds an answer and tells the listeners. */
export function add(overview) {
	const at = Date.now() / 1000
	samples.push({ at, rates: overview.rates })
	while (samples[0].at < at - SPAN_SECS - 10) samples.shift()
	last = overview
	for (const listener of listeners) listener(overview)
}

/** Calls the listener with the last answer and every further one. */
export function listen(listener, signal) {
	listeners.add(listener)
	signal?.addEventListener('abort', () => listeners.delete(listener))
	if (last) listener(last)
}

/** Milliseconds since the last answer. */
export const age = () => (samples.length ? Date.now() - samples.at(-1).at * 1000 : Infinity)

/** Samples, the oldest first: {at, rates}. */
export const all = () => samples
