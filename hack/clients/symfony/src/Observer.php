<?php

namespace Shop;

use Redrive\Messenger\RedriveStamp;
use Symfony\Component\EventDispatcher\EventSubscriberInterface;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\Event\WorkerMessageHandledEvent;
use Symfony\Component\Messenger\Event\WorkerMessageReceivedEvent;
use Symfony\Component\Messenger\Middleware\MiddlewareInterface;
use Symfony\Component\Messenger\Middleware\StackInterface;
use Symfony\Component\Messenger\Stamp\ConsumedByWorkerStamp;
use Symfony\Component\Messenger\Stamp\ReceivedStamp;
use Symfony\Component\Messenger\Stamp\RedeliveryStamp;
use Symfony\Component\Messenger\Stamp\TransportMessageIdStamp;

/** Reports what middleware and listeners, such as Doctrine's and Sentry's, see of a message. */
final class Observer implements MiddlewareInterface, EventSubscriberInterface
{
    public function handle(Envelope $envelope, StackInterface $stack): Envelope
    {
        $stamp = $envelope->last(RedriveStamp::class);
        if (null !== $stamp) {
            Report::$attempt = $stamp->message->attempt;
            Report::that('envelope', $envelope->getMessage()->name, [
                'consumed' => null !== $envelope->last(ConsumedByWorkerStamp::class),
                'id' => $envelope->last(TransportMessageIdStamp::class)->getId(),
                'transport' => $envelope->last(ReceivedStamp::class)->getTransportName(),
                'redelivered' => RedeliveryStamp::getRetryCountFromEnvelope($envelope),
            ]);
        }

        return $stack->next()->handle($envelope, $stack);
    }

    public static function getSubscribedEvents(): array
    {
        return [
            WorkerMessageReceivedEvent::class => 'onEvent', WorkerMessageHandledEvent::class => 'onEvent', WorkerMessageFailedEvent::class => 'onEvent',
        ];
    }

    public function onEvent(object $event): void
    {
        Report::$attempt = $event->getEnvelope()->last(RedriveStamp::class)->message->attempt;
        $name = $event->getEnvelope()->getMessage()->name;
        Report::that((new \ReflectionClass($event))->getShortName(), $name);
        if ($event instanceof WorkerMessageReceivedEvent && str_starts_with($name, 'skipped') && 1 === Report::$attempt) {
            $event->shouldHandle(false);
        }
    }
}
