<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\Messenger\Stamp\NonSendableStampInterface;

/** Is on each message that a Redrive worker handed over, for middleware that needs the attempt, the idempotency key or progress(). */
final class RedriveStamp implements NonSendableStampInterface
{
    public function __construct(public readonly ReceivedMessage $message)
    {
    }
}
