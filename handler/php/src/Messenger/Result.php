<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Exception\HandlerFailedException;
use Symfony\Component\Messenger\Exception\RecoverableExceptionInterface;
use Symfony\Component\Messenger\Exception\UnrecoverableExceptionInterface;
use Symfony\Component\Messenger\Stamp\HandledStamp;

/** What the protocol says of an exception, by Symfony's own rules. */
final class Result
{
    /** The longest text that the protocol carries. */
    private const MAX_CARRY = 4096;

    /**
     * The failure that an exception is. Several handlers may have failed: the message is retried where one of them is recoverable, and is
     * not where all are unrecoverable.
     *
     * @return array<string, mixed>
     */
    public static function failure(\Throwable $thrown): array
    {
        $causes = $thrown instanceof RecoverableExceptionInterface || $thrown instanceof UnrecoverableExceptionInterface ? [$thrown] : self::causes($thrown);
        $recoverable = array_values(array_filter($causes, static fn ($e) => $e instanceof RecoverableExceptionInterface));
        $others = array_values(array_filter($causes, static fn ($e) => !$e instanceof UnrecoverableExceptionInterface));
        if ([] !== $recoverable) {
            $delays = array_filter(array_map(self::delay(...), $recoverable), static fn ($delay) => null !== $delay);

            $releases = array_filter($causes, static fn ($e) => $e instanceof ReleaseException);
            $advice = \count($releases) === \count($causes) ? 'release' : 'retry';

            return self::describe($recoverable[0]) + ['advice' => $advice] + ([] === $delays ? [] : ['retryAfter' => min($delays) / 1000]);
        }
        if ([] === $others) {
            return self::describe($causes[0]) + ['advice' => 'fail'];
        }

        return self::describe($others[0]);
    }

    /** A message that no retry makes readable. */
    public static function unreadable(\Throwable $thrown): array
    {
        return ['class' => 'NotDecoded', 'advice' => 'fail'] + self::describe($thrown);
    }

    /** What the next attempt has to know: which handlers are done. Null where none is. */
    public static function carry(Envelope $envelope): ?string
    {
        $done = array_values(array_unique(array_map(static fn (HandledStamp $s) => $s->getHandlerName(), $envelope->all(HandledStamp::class))));
        while ([] !== $done) {
            $carry = json_encode(['handled' => $done], \JSON_THROW_ON_ERROR | \JSON_INVALID_UTF8_SUBSTITUTE | \JSON_UNESCAPED_SLASHES);
            if (\strlen($carry) <= self::MAX_CARRY) {
                return $carry;
            }
            array_pop($done); // it runs again, as without a carry
        }

        return null;
    }

    /** @return list<HandledStamp> of the handlers that an attempt before this one has done with */
    public static function handled(string $carry): array
    {
        $carried = json_decode($carry, true);
        $names = \is_array($carried) && \is_array($carried['handled'] ?? null) ? $carried['handled'] : [];

        return array_map(static fn (string $name) => new HandledStamp(null, $name), array_values(array_filter($names, 'is_string')));
    }

    /** @return non-empty-list<\Throwable> */
    private static function causes(\Throwable $thrown): array
    {
        if (!$thrown instanceof HandlerFailedException) {
            return [$thrown];
        }
        // Symfony 6.4 renamed it.
        $nested = method_exists($thrown, 'getWrappedExceptions') ? $thrown->getWrappedExceptions() : $thrown->getNestedExceptions();

        return [] === $nested ? [$thrown] : array_values($nested);
    }

    /** The delay in milliseconds that an exception asks for, from Symfony 7.2 on. */
    private static function delay(\Throwable $e): ?int
    {
        $delay = method_exists($e, 'getRetryDelay') ? $e->getRetryDelay() : null;

        return null === $delay || $delay < 0 ? null : $delay;
    }

    /** @return array<string, mixed> */
    private static function describe(\Throwable $e): array
    {
        return ['outcome' => 'failure', 'class' => $e::class, 'message' => substr($e->getMessage(), 0, 1000)];
    }
}
