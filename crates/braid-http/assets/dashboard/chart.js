// Chart of the last minutes. Series differ in colour and in the pattern of the line.

import { card, h, setText } from './dom.js'
import * as history from './history.js'

const WIDTH = 300
const HEIGHT = 84
/** Longest time between samples that a line spans; longer ones are gaps. */
const GAP_SECS = 12

/** Card with a chart of `series` [[rate, label]]; `format` writes a rate, `round` gives the scale. Returns {element, draw}. */
export function chart(title, series, format, round) {
	const scaling = { 'vector-effect': 'non-scaling-stroke' }
	// The first series is drawn solid with an area, the second dashed.
	const lines = series.map(([rate, label], at) => ({ key: `${rate}_per_sec`, label, path: h(`path.line.${at ? 'out' : 'in'}`, scaling), value: h('strong', '–') }))
	const area = h('path.area')
	const top = h('span.axis.top')
	const legend = h('div.legend', lines.map(({ label, path, value }) => h('div',
		h('svg.key', { viewBox: '0 0 22 6', 'aria-hidden': 'true' }, h('path', { class: path.getAttribute('class'), d: 'M0 3h22' })), h('span.muted', label), value)))
	const plot = h('div.plot', h('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' },
		h('path.gridlines', { ...scaling, d: `M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` }), area, lines.map(({ path }) => path)),
	top, h('span.axis', '−5 min'), h('span.axis.right', 'now'))
	const draw = () => {
		const samples = history.all()
		const now = Date.now() / 1000
		const scale = round(Math.max(1, ...samples.flatMap(({ rates }) => lines.map(({ key }) => rates[key] ?? 0))))
		setText(top, format(scale))
		const x = (at) => (WIDTH - ((now - at) / history.SPAN_SECS) * WIDTH).toFixed(1)
		lines.forEach(({ key, path, value }, index) => {
			let before = -Infinity
			const d = samples.map(({ at, rates }) => {
				const command = at - before > GAP_SECS ? 'M' : 'L'
				before = at
				return `${command}${x(at)} ${(HEIGHT - 1 - ((rates[key] ?? 0) / scale) * (HEIGHT - 4)).toFixed(1)}`
			}).join('')
			path.setAttribute('d', d)
			setText(value, format(samples.at(-1).rates[key]))
			// The area ends with the part after the last gap.
			const start = samples.findLastIndex(({ at }, place) => place === 0 || at - samples[place - 1].at > GAP_SECS)
			if (index === 0) area.setAttribute('d', `${d.slice(d.lastIndexOf('M'))}V${HEIGHT}H${x(samples[start].at)}Z`)
		})
	}
	return { element: card(title, null, legend, plot), draw }
}
