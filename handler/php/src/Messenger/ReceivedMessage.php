<?php

declare(strict_types=1);

namespace Redrive\Messenger;

/** One attempt at one message, as the worker tells of it. */
final class ReceivedMessage
{
    /** The worker's name of this attempt. */
    public readonly string $frameId;
    public readonly string $body;
    /** The same for every attempt. */
    public readonly string $id;
    /** The same for every attempt at this message in this queue. */
    public readonly string $idempotencyKey;
    /** 1 for the first. */
    public readonly int $attempt;
    /** Retries that counted so far. */
    public readonly int $retries;
    public readonly string $queue;
    /** @var array<string, mixed> as the producer set them */
    public readonly array $headers;
    /** What the last failure asked to have back; empty where there is nothing. */
    public readonly string $carry;
    /** @var array<string, mixed> all of the above and what else the protocol tells, such as type and routingKey */
    public readonly array $about;

    /** @param array<string, mixed> $frame */
    public function __construct(private readonly Protocol $protocol, array $frame)
    {
        $about = $frame['message'];
        $this->frameId = $frame['id'];
        $this->body = $frame['body'] ?? base64_decode($frame['bodyBase64'], true);
        $this->id = $about['id'] ?? '';
        $this->idempotencyKey = $about['idempotencyKey'] ?? '';
        $this->attempt = $about['attempt'] ?? 1;
        $this->retries = $about['retries'] ?? 0;
        $this->queue = $about['queue'] ?? '';
        $this->headers = $about['headers'] ?? [];
        $this->carry = $about['carry'] ?? '';
        $this->about = $about;
    }

    /** Asks for the whole timeout anew. */
    public function progress(): void
    {
        $this->protocol->progress($this->frameId);
    }
}
