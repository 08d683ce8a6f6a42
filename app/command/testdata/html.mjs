// Reads a JSON list of Markdown texts, writes the list of what micromark
// renders of each with GitHub's extensions and with HTML let through.
import {readFileSync, writeFileSync} from 'node:fs'
import {micromark} from 'micromark'
import {gfm, gfmHtml} from 'micromark-extension-gfm'

const options = {allowDangerousHtml: true, extensions: [gfm()], htmlExtensions: [gfmHtml()]}
const bodies = JSON.parse(readFileSync(0, 'utf8'))
writeFileSync(1, JSON.stringify(bodies.map(b => micromark(b, options))))
