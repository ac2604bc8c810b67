<?php

// Redrive keeps this program running, in place of messenger:consume, and gives it one message after the other.

use Symfony\Component\Messenger\Exception\HandlerFailedException;
use Symfony\Component\Messenger\Exception\MessageDecodingFailedException;
use Symfony\Component\Messenger\Exception\RecoverableExceptionInterface;
use Symfony\Component\Messenger\Exception\UnrecoverableExceptionInterface;
use Symfony\Component\Messenger\Stamp\ReceivedStamp;
use Symfony\Component\Messenger\Transport\Serialization\Serializer;

require __DIR__ . '/../clients/php/redrive.php';

$bus = require __DIR__ . '/bus.php';
$serializer = Serializer::create();

Redrive\serve(function (Redrive\Message $message) use ($bus, $serializer): void {
    try {
        $envelope = $serializer->decode(['body' => $message->body, 'headers' => $message->about['headers']]);
    } catch (MessageDecodingFailedException $e) {
        throw new Redrive\Fail($e->getMessage(), 'NotDecoded', previous: $e);
    }
    try {
        $bus->dispatch($envelope->with(new ReceivedStamp('async'))); // received: it is handled here, not sent again
    } catch (Throwable $e) {
        $cause = $e instanceof HandlerFailedException ? $e->getPrevious() ?? $e : $e;
        $delay = method_exists($cause, 'getRetryDelay') ? $cause->getRetryDelay() : null; // in ms, from Symfony 7.2 on
        throw match (true) {
            $cause instanceof UnrecoverableExceptionInterface => new Redrive\Fail($cause->getMessage(), $cause::class, previous: $cause),
            $cause instanceof RecoverableExceptionInterface =>
                new Redrive\RetryAfter(($delay ?? 5000) / 1000, $cause->getMessage(), $cause::class, previous: $cause),
            default => $cause,
        };
    }
});
