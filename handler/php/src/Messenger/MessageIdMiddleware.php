<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpStamp;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Middleware\MiddlewareInterface;
use Symfony\Component\Messenger\Middleware\StackInterface;
use Symfony\Component\Messenger\Stamp\ReceivedStamp;

/** Gives each message that is sent the AMQP property message-id, which Symfony leaves out. An id that is there stays. */
final class MessageIdMiddleware implements MiddlewareInterface
{
    public function handle(Envelope $envelope, StackInterface $stack): Envelope
    {
        if (null === $envelope->last(ReceivedStamp::class) && \extension_loaded('amqp') && class_exists(AmqpStamp::class)) {
            $before = $envelope->last(AmqpStamp::class);
            if ('' === ($before?->getAttributes()['message_id'] ?? '')) {
                $envelope = $envelope->with(AmqpStamp::createWithAttributes(['message_id' => bin2hex(random_bytes(16))], $before));
            }
        }

        return $stack->next()->handle($envelope, $stack);
    }
}
