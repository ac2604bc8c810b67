<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Psr\Log\LoggerInterface;
use Symfony\Component\Console\Command\Command;
use Symfony\Component\Console\Input\InputArgument;
use Symfony\Component\Console\Input\InputInterface;
use Symfony\Component\Console\Input\InputOption;
use Symfony\Component\Console\Output\OutputInterface;
use Symfony\Component\EventDispatcher\EventDispatcherInterface;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\Event\WorkerMessageReceivedEvent;
use Symfony\Component\Messenger\EventListener\ResetServicesListener;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\EventListener\SendFailedMessageToFailureTransportListener;
use Symfony\Component\Messenger\MessageBusInterface;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Messenger\Worker;

/** Is started by a Redrive worker, in place of messenger:consume. */
final class ConsumeCommand extends Command
{
    public const NAME = 'redrive:consume';

    public function __construct(
        private readonly MessageBusInterface $bus,
        private readonly SerializerInterface $serializer,
        private readonly EventDispatcherInterface $dispatcher,
        private readonly ResetServicesListener $resetServices,
        private readonly ?LoggerInterface $logger = null,
    ) {
        parent::__construct(self::NAME);
    }

    protected function configure(): void
    {
        $this
            ->setDescription('Handle the messages that a Redrive worker hands over on the standard input')
            ->addArgument('transport', InputArgument::OPTIONAL, 'Name of the transport that messages count as received from, for handlers with from_transport', 'redrive')
            ->addOption('concurrency', null, InputOption::VALUE_REQUIRED, 'Number of messages taken at a time: more than 1 is for batch handlers only', '1');
    }

    protected function execute(InputInterface $input, OutputInterface $output): int
    {
        $concurrency = filter_var($input->getOption('concurrency'), \FILTER_VALIDATE_INT, ['options' => ['min_range' => 1, 'max_range' => 1000]]);
        if (false === $concurrency) {
            throw new \InvalidArgumentException(sprintf('--concurrency is "%s", and must be a number from 1 to 1000.', $input->getOption('concurrency')));
        }
        Protocol::keepOutputClear();
        $this->leaveRetriesToRedrive();
        $protocol = new Protocol();
        $worker = null;
        $receiver = new ProcessReceiver($protocol, $this->serializer, $this->logger, static function () use (&$worker): void {
            $worker->stop();
        });
        $this->dispatcher->addListener(WorkerMessageFailedEvent::class, $receiver->onFailure(...), \PHP_INT_MIN);
        $this->dispatcher->addListener(WorkerMessageReceivedEvent::class, $receiver->onReceived(...), \PHP_INT_MIN);
        $this->dispatcher->addSubscriber($this->resetServices);
        $worker = new Worker([$input->getArgument('transport') => $receiver], $this->bus, $this->dispatcher, $this->logger);
        $protocol->hello($concurrency);
        $worker->run(['sleep' => 0]);

        return self::SUCCESS;
    }

    /** Takes out, in this process alone, the listeners that would publish a failed message again beside Redrive. */
    private function leaveRetriesToRedrive(): void
    {
        foreach ($this->dispatcher->getListeners(WorkerMessageFailedEvent::class) as $listener) {
            $owner = \is_array($listener) ? $listener[0] : null;
            if ($owner instanceof SendFailedMessageForRetryListener || $owner instanceof SendFailedMessageToFailureTransportListener) {
                $this->dispatcher->removeListener(WorkerMessageFailedEvent::class, $listener);
            }
        }
    }
}
