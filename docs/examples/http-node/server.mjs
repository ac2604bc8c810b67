// The handler of orders, as a plain HTTP server. An answer of 2xx is success; the rest is decided by the retry policy, which
// sees the status and the type of the problem (RFC 9457).
import { createServer } from 'node:http';

const problem = (response, status, type, detail, headers = {}) => {
  response.writeHead(status, { 'Content-Type': 'application/problem+json', ...headers });
  response.end(JSON.stringify({ type, detail }));
};

const store = async (request, response) => {
  const chunks = [];
  for await (const chunk of request) {
    chunks.push(chunk);
  }
  const order = JSON.parse(Buffer.concat(chunks));
  const attempt = Number(request.headers['redrive-attempt']);

  if (!order.customer) {
    return problem(response, 422, 'NoCustomer', 'an order needs a customer');
  }
  if (order.busy && attempt === 1) {
    return problem(response, 503, 'Busy', 'come back in a second', { 'Retry-After': '1' });
  }
  console.error(`order of ${order.customer} stored at attempt ${attempt}`);
  response.writeHead(204).end();
};

const server = createServer((request, response) => {
  if (request.method === 'GET') {
    return response.end('ready\n'); // the Transport's readinessURL
  }
  // What is not caught would end the server, and with it all that it has in hand.
  store(request, response).catch((error) => problem(response, 500, error.name, error.message));
}).listen(process.env.PORT ?? 8089, '127.0.0.1');

process.on('SIGTERM', () => server.close()); // finishes what it has
