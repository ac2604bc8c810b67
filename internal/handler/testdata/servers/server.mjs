// Prints the URL that it listens at, and for each request a line of JSON: its headers. Refuses what comes from another site, as protection
// against forged requests does.

import { createServer } from 'node:http'

const server = createServer((request, response) => {
  request.resume()
  request.on('end', () => {
    console.log(JSON.stringify(request.headers))
    const { origin, host } = request.headers
    response.writeHead(origin && origin !== `http://${host}` ? 403 : 204).end()
  })
})
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/`))
