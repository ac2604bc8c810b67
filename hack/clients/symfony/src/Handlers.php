<?php

namespace Shop;

use Symfony\Component\Messenger\Exception\RecoverableMessageHandlingException;
use Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException;

/** The handlers of an Order: each message goes to all of them. */
final class Handlers
{
    public function first(Order $order): void
    {
        Report::that('first', $order->name);
        if (\in_array($order->mode, ['hopeless', 'recoverable'], true) || 'mixed' === $order->mode && 1 === Report::$attempt) {
            throw new UnrecoverableMessageHandlingException('the first finds it wrong');
        }
    }

    public function second(Order $order): void
    {
        Report::that('second', $order->name);
        match (Report::$attempt > 1 ? 'again' : $order->mode) {
            'hopeless' => throw new UnrecoverableMessageHandlingException('so does the second'),
            'recoverable' => throw new RecoverableMessageHandlingException('its time will come'),
            'half', 'mixed' => throw new \RuntimeException('the partner is busy'),
            default => null,
        };
    }

    public function elsewhere(Order $order): void
    {
        Report::that('elsewhere', $order->name);
    }
}
