<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\Messenger\Exception\RecoverableExceptionInterface;

/**
 * What a handler throws where this was no attempt, such as when something that it needs is taken by somebody else: the message comes again
 * after the delay, and neither an attempt nor a retry is counted. Where another handler of the message failed for another reason there was
 * an attempt, and this exception is a recoverable one. Under messenger:consume it is that, too.
 */
class ReleaseException extends \RuntimeException implements RecoverableExceptionInterface
{
    /** @param int|null $retryDelay in milliseconds; null for the first delay of the policy's backoff */
    public function __construct(string $message = '', ?\Throwable $previous = null, private readonly ?int $retryDelay = null)
    {
        parent::__construct($message, 0, $previous);
    }

    public function getRetryDelay(): ?int
    {
        return $this->retryDelay;
    }
}
