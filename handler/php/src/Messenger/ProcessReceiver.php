<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Psr\Log\LoggerInterface;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\Event\WorkerMessageReceivedEvent;
use Symfony\Component\Messenger\Exception\MessageDecodingFailedException;
use Symfony\Component\Messenger\Stamp\RedeliveryStamp;
use Symfony\Component\Messenger\Stamp\TransportMessageIdStamp;
use Symfony\Component\Messenger\Transport\Receiver\ReceiverInterface;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;

/** Gives Symfony's own Worker the messages of a Redrive worker, and tells that one what became of them. */
final class ProcessReceiver implements ReceiverInterface
{
    /** How long a message that a batch handler keeps waits for others, in seconds. */
    private const BATCH_WAIT = 0.05;

    /** @var array<string, true> frames that are not answered */
    private array $inHand = [];
    /** @var array<string, array<string, mixed>> results of messages that are about to be rejected */
    private array $failures = [];

    /** @param \Closure(): void $stop ends the Worker */
    public function __construct(
        private readonly Protocol $protocol,
        private readonly SerializerInterface $serializer,
        private readonly ?LoggerInterface $logger,
        private readonly \Closure $stop,
    ) {
    }

    /** The next message. It waits for one, unless a batch handler keeps some: that one is asked to go on where no more come. */
    public function get(): iterable
    {
        $message = $this->protocol->next([] === $this->inHand ? null : self::BATCH_WAIT);
        if (null === $message) {
            if ($this->protocol->hasEnded()) {
                ($this->stop)();
            }

            return [];
        }
        $this->inHand[$message->frameId] = true;
        try {
            $envelope = $this->serializer->decode(['body' => $message->body, 'headers' => $message->headers]);
        } catch (MessageDecodingFailedException $e) {
            $this->answer($message->frameId, Result::unreadable($e));

            return [];
        } catch (\Throwable $e) { // the serializer itself is in trouble
            $this->answer($message->frameId, Result::failure($e));

            return [];
        }
        $stamps = [new RedriveStamp($message), new TransportMessageIdStamp($message->id), ...Result::handled($message->carry)];
        if ($message->attempt > 1) {
            $stamps[] = new RedeliveryStamp($message->attempt - 1);
        }

        return [$envelope->with(...$stamps)];
    }

    public function ack(Envelope $envelope): void
    {
        $this->answer($this->frame($envelope), ['outcome' => 'ack']);
    }

    public function reject(Envelope $envelope): void
    {
        $id = $this->frame($envelope);
        $this->answer($id, $this->failures[$id] ?? ['outcome' => 'failure', 'class' => 'Rejected']);
    }

    /** Remembers why a message is rejected, and which of its handlers are done. It comes after all other listeners. */
    public function onFailure(WorkerMessageFailedEvent $event): void
    {
        $envelope = $event->getEnvelope();
        $id = $this->frame($envelope);
        $carry = Result::carry($envelope);
        $this->failures[$id] = Result::failure($event->getThrowable()) + (null === $carry ? [] : ['carry' => $carry]);
        $stamp = $envelope->last(RedriveStamp::class);
        $this->logger?->error('Error thrown while handling message {class}, attempt {attempt}. Redrive decides what becomes of it. Error: "{error}"', [
            'class' => $envelope->getMessage()::class, 'message_id' => $stamp->message->id, 'attempt' => $stamp->message->attempt,
            'error' => $event->getThrowable()->getMessage(), 'exception' => $event->getThrowable(),
        ]);
    }

    /** Gives back what a listener does not want to be handled now: Symfony's Worker says no more of it. It comes after all other listeners. */
    public function onReceived(WorkerMessageReceivedEvent $event): void
    {
        if (!$event->shouldHandle()) {
            $this->answer($this->frame($event->getEnvelope()), ['outcome' => 'failure', 'class' => 'NotHandled', 'advice' => 'retry']);
        }
    }

    private function frame(Envelope $envelope): string
    {
        return $envelope->last(RedriveStamp::class)->message->frameId;
    }

    /** @param array<string, mixed> $result */
    private function answer(string $id, array $result): void
    {
        unset($this->inHand[$id], $this->failures[$id]);
        $this->protocol->result($id, $result);
    }
}
