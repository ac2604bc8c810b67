<?php

declare(strict_types=1);

namespace Redrive\Messenger;

/** The program's side of Redrive's process protocol, version 1: frames of JSON, one on each line. */
final class Protocol
{
    private bool $ended = false;

    /**
     * @param resource $in
     * @param resource $out
     */
    public function __construct(private $in = \STDIN, private $out = \STDOUT)
    {
        stream_set_chunk_size($in, 1 << 16); // frames are large
    }

    /** Sends what is printed from here on to the standard error: on the standard output it would stand among the frames. */
    public static function keepOutputClear(): void
    {
        ini_set('display_errors', 'stderr');
        ob_start(static function (string $printed): string {
            fwrite(\STDERR, $printed);

            return '';
        }, 1);
    }

    /** Says that the program is ready for so many messages at a time. */
    public function hello(int $concurrency): void
    {
        $this->write(['type' => 'hello', 'protocol' => 1, 'concurrency' => $concurrency]);
    }

    /** The next message; null where none comes within so many seconds, or the worker has no more. Null waits for one. */
    public function next(?float $seconds = null): ?ReceivedMessage
    {
        while (!$this->ended && $this->readable($seconds)) {
            $line = fgets($this->in);
            if (false === $line) {
                $this->ended = true;

                return null;
            }
            $frame = json_decode($line, true, 512, \JSON_THROW_ON_ERROR);
            unset($line); // of a large message there shall not be more copies than it takes
            if ('message' === ($frame['type'] ?? null)) {
                return new ReceivedMessage($this, $frame);
            }
        }

        return null;
    }

    /** True once the worker has no more messages. */
    public function hasEnded(): bool
    {
        return $this->ended;
    }

    /** @param array<string, mixed> $result */
    public function result(string $frameId, array $result): void
    {
        $this->write(['type' => 'result', 'id' => $frameId] + $result);
    }

    public function progress(string $frameId): void
    {
        $this->write(['type' => 'progress', 'id' => $frameId]);
    }

    private function readable(?float $seconds): bool
    {
        if (null === $seconds) {
            return true; // fgets waits
        }
        $read = [$this->in];
        $none = null;

        return 1 === @stream_select($read, $none, $none, 0, (int) ($seconds * 1e6)); // a signal may interrupt it, with a warning
    }

    /** @param array<string, mixed> $frame */
    private function write(array $frame): void
    {
        fwrite($this->out, json_encode($frame, \JSON_THROW_ON_ERROR | \JSON_INVALID_UTF8_SUBSTITUTE | \JSON_UNESCAPED_UNICODE) . "\n");
        fflush($this->out);
    }
}
