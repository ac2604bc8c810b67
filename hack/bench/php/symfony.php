<?php

/**
 * One consumer process of Symfony Messenger, as Debian packages it: php symfony.php AMQP-URL QUEUE-TYPE MESSAGES RETRIES.
 * It sends the messages, then handles them, and prints how many it handled in a second. With RETRIES 1 each one fails once, and
 * comes back after one second.
 */

declare(strict_types=1);

namespace App;

require '/usr/share/php/Symfony/Component/Messenger/autoload.php';
require '/usr/share/php/Symfony/Component/EventDispatcher/autoload.php';

use Psr\Container\ContainerInterface;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransport;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\Connection;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\EventListener\StopWorkerOnMessageLimitListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Worker;

final class OrderPlaced
{
    public function __construct(public readonly int $number, public readonly array $order)
    {
    }
}

/** The first fifth is not timed, unless all messages fail once: then it is all from the first attempt on. */
final class Handler
{
    private int $handled = 0;
    private array $failed = [];
    private float $began = 0;
    public float $rate = 0;

    public function __construct(private readonly int $messages, private readonly bool $failOnce)
    {
    }

    public function __invoke(OrderPlaced $message): void
    {
        if ($this->failOnce && !isset($this->failed[$message->number])) {
            $this->failed[$message->number] = true;
            $this->began = $this->began ?: microtime(true);
            throw new \RuntimeException('not at the first attempt');
        }
        $warm = $this->failOnce ? 0 : intdiv($this->messages, 5);
        if (++$this->handled === $warm + 1 && !$this->failOnce) {
            $this->began = microtime(true);
        }
        if ($this->handled === $this->messages) {
            $this->rate = ($this->messages - $warm) / (microtime(true) - $this->began);
        }
    }
}

/** A container of one thing. */
final class Only implements ContainerInterface
{
    public function __construct(private readonly object $thing)
    {
    }

    public function get(string $id): object
    {
        return $this->thing;
    }

    public function has(string $id): bool
    {
        return true;
    }
}

[, $url, $type, $messages, $retries] = $argv;
$name = "symfony-$type-$retries";
$transport = new AmqpTransport(Connection::fromDsn($url, [
    'exchange' => ['name' => $name, 'type' => 'direct', 'default_publish_routing_key' => $name],
    'queues' => [$name => ['binding_keys' => [$name], 'arguments' => ['x-queue-type' => $type]]],
    'delay' => ['exchange_name' => "$name-delays"],
]));
$transport->setup();
$order = ['order' => 'A-2026-000123', 'customer' => 4711, 'items' => [['sku' => 'B-17', 'count' => 2], ['sku' => 'C-4', 'count' => 1]]];
for ($i = 0; $i < $messages; $i++) {
    $transport->send(new Envelope(new OrderPlaced($i, $order)));
}

$handler = new Handler((int) $messages, $retries > 0);
$dispatcher = new EventDispatcher();
$dispatcher->addSubscriber(new SendFailedMessageForRetryListener(new Only($transport), new Only(new MultiplierRetryStrategy((int) $retries, 1000, 1))));
$dispatcher->addSubscriber(new StopWorkerOnMessageLimitListener($messages * ($retries + 1)));
$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([OrderPlaced::class => [$handler]]))]);
(new Worker(['async' => $transport], $bus, $dispatcher))->run();
echo json_encode(['rate' => $handler->rate]), "\n";
