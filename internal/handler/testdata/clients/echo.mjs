// Handles every message, and does nothing.

import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

const { serve } = await import(pathToFileURL(resolve(process.argv[2], 'redrive.mjs')))

await serve(async () => {})
