<?php

// Obeys the orders of the package handlertest. The argument is the folder of the client.

declare(strict_types=1);

require realpath($argv[1]) . '/redrive.php';

use Redrive\Drop;
use Redrive\Fail;
use Redrive\Failure;
use Redrive\Message;
use Redrive\Release;
use Redrive\RetryAfter;

const FLOOD = 64 << 20;

function description(Message $m): string
{
    $a = $m->about;
    $moment = static fn (?string $value): string => $value === null ? '0001-01-01T00:00:00Z' : preg_replace('/\.\d+/', '', $value);

    return implode('|', [
        $a['id'] ?? '', $a['idempotencyKey'] ?? '', $a['attempt'] ?? 0, $a['retries'] ?? 0, $a['queue'] ?? '', $a['exchange'] ?? '',
        $a['routingKey'] ?? '', $a['type'] ?? '', $a['correlationId'] ?? '', $a['contentType'] ?? '', $a['contentEncoding'] ?? '',
        $a['replyTo'] ?? '', $a['appId'] ?? '', $a['userId'] ?? '', $a['priority'] ?? 0, $a['expiration'] ?? '',
        $moment($a['timestamp'] ?? null), $moment($a['firstFailure'] ?? null), $a['traceparent'] ?? '', $a['tracestate'] ?? '',
    ]);
}

function flood(): void
{
    $part = str_repeat('flood ', 10_000) . "\n";
    for ($written = 0; $written < FLOOD; $written += strlen($part)) {
        fwrite(STDERR, $part);
    }
}

function hang(Message $m): never
{
    if (($address = $m->header('test-report')) !== null) {
        $report = stream_socket_client('tcp://' . $address); // it stands for as long as this process does
    }
    while (true) {
        sleep(3600);
    }
}

function progress(Message $m): void
{
    for ($i = 0; $i < 8; ++$i) { // altogether longer than the timeout
        usleep(500_000);
        $m->progress();
    }
}

function crash(): void
{
    ini_set('memory_limit', '32M');
    str_repeat('x', 1 << 30);
}

function throwUp(): never
{
    echo "a stray print\n";
    throw new LogicException('no such thing');
}

Redrive\serve(static function (Message $m): void {
    $order = $m->header('test-order');
    match ($order) {
        'succeed' => hash('sha256', $m->body) === $m->header('test-sum') ?: throw new Failure('the body is another one', 'Mismatch'),
        'succeed unread' => null,
        'refuse' => throw new Failure('no flour left', 'OutOfStock', retryAfter: 7),
        'advise fail' => throw new Fail('as it asks for', 'Advised'),
        'advise drop' => throw new Drop('as it asks for', 'Advised'),
        'advise retry' => throw new RetryAfter(90, 'as it asks for', 'Advised'),
        'advise release' => throw new Release(90, 'as it asks for', 'Advised'),
        'carry' => throw new Failure('half done', 'Half', carry: ($m->about['carry'] ?? '') . '+1'),
        'describe' => throw new Failure(description($m), 'Described'),
        'hang' => hang($m),
        'crash' => crash(),
        'flood success' => flood(),
        'flood failure' => [flood(), throw new Failure('the water rises', 'Flood')],
        'progress' => progress($m),
        'raise' => throwUp(),
        default => throw new Failure('the order is ' . var_export($order, true), 'NoOrder'),
    };
});
