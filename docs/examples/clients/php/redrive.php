<?php

/**
 * Redrive's process protocol for PHP 8.1 and newer. Copy this file beside your program:
 *
 *     require __DIR__ . '/redrive.php';
 *
 *     Redrive\serve(function (Redrive\Message $message): void {
 *         $order = json_decode($message->body, true, flags: JSON_THROW_ON_ERROR);
 *         …
 *     });
 *
 * A function that returns has handled the message. One that throws has failed, and the retry policy decides what follows,
 * unless it throws Fail, Drop, RetryAfter or Release. What is echoed goes to the worker's log.
 */

declare(strict_types=1);

namespace Redrive;

// What is printed is no frame, from here on: before the first message too, where it says why the program does not start.
ini_set('display_errors', 'stderr');
ob_start(static function (string $printed): string {
    fwrite(STDERR, $printed);

    return '';
}, 1);

/** A failure with a class and a status for the expressions of a retry policy. */
class Failure extends \RuntimeException
{
    public function __construct(
        string $text = '',
        public readonly ?string $class = null,
        public readonly int $status = 0,
        public readonly ?string $advice = null,
        public readonly ?float $retryAfter = null,
        ?\Throwable $previous = null,
        public readonly ?string $carry = null, // the next attempt finds it in $message->about['carry']
    ) {
        parent::__construct($text, 0, $previous);
    }
}

/** The message is wrong: to the failure queue, with no more retries. */
final class Fail extends Failure
{
    public function __construct(string $text = '', ?string $class = null, int $status = 0, ?\Throwable $previous = null)
    {
        parent::__construct($text, $class, $status, 'fail', previous: $previous);
    }
}

/** Nobody needs the message any more: it is forgotten. */
final class Drop extends Failure
{
    public function __construct(string $text = '', ?string $class = null, int $status = 0, ?\Throwable $previous = null)
    {
        parent::__construct($text, $class, $status, 'drop', previous: $previous);
    }
}

/** The time of the message has not come: again after so many seconds, and it does not count. */
final class RetryAfter extends Failure
{
    public function __construct(float $seconds, string $text = '', ?string $class = null, int $status = 0, ?\Throwable $previous = null)
    {
        parent::__construct($text, $class, $status, 'retry', $seconds, $previous);
    }
}

/** This was no attempt: the message comes again after so many seconds, and neither an attempt nor a retry is counted. */
final class Release extends Failure
{
    public function __construct(float $seconds, string $text = '', ?string $class = null, int $status = 0, ?\Throwable $previous = null)
    {
        parent::__construct($text, $class, $status, 'release', $seconds, $previous);
    }
}

/** A message: its body, and in $about what else the protocol tells, such as 'id', 'attempt', 'queue', 'type' and 'headers'. */
final class Message
{
    public function __construct(
        public readonly string $body,
        public readonly array $about,
        public readonly ?string $deadline,
        private readonly string $frameId,
    ) {
    }

    /** A header as the producer set it, or null. */
    public function header(string $name): mixed
    {
        return $this->about['headers'][$name] ?? null;
    }

    /** Asks for the whole timeout anew. */
    public function progress(): void
    {
        write(['type' => 'progress', 'id' => $this->frameId]);
    }
}

/** Calls a function with one message after the other, until the worker has no more. */
function serve(callable $handle): void
{
    stream_set_chunk_size(STDIN, 1 << 16);
    write(['type' => 'hello', 'protocol' => 1, 'concurrency' => 1]);
    while (($line = fgets(STDIN)) !== false) {
        $frame = json_decode($line, true, flags: JSON_THROW_ON_ERROR);
        unset($line); // of a large message there shall not be more copies than it takes
        if ($frame['type'] !== 'message') {
            continue;
        }
        $id = $frame['id'];
        $body = $frame['body'] ?? base64_decode($frame['bodyBase64']);
        $message = new Message($body, $frame['message'], $frame['deadline'] ?? null, $id);
        unset($frame, $body);
        write(['type' => 'result', 'id' => $id] + result($handle, $message));
        unset($message);
    }
}

/** What a function made of a message. */
function result(callable $handle, Message $message): array
{
    try {
        $handle($message);

        return ['outcome' => 'ack'];
    } catch (Failure $e) {
        $told = ['class' => $e->class ?? $e::class, 'status' => $e->status, 'advice' => $e->advice, 'retryAfter' => $e->retryAfter,
            'carry' => $e->carry];
    } catch (\Throwable $e) {
        fwrite(STDERR, $e . "\n");
        $told = ['class' => $e::class];
    }

    return ['outcome' => 'failure', 'message' => substr($e->getMessage(), 0, 1000)] + array_filter($told, static fn ($v) => $v !== null);
}

/** Writes a frame. */
function write(array $frame): void
{
    fwrite(STDOUT, json_encode($frame, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_UNICODE) . "\n");
}
