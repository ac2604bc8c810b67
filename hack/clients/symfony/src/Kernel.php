<?php

namespace Shop;

use Redrive\Messenger\RedriveBundle;
use Symfony\Bundle\FrameworkBundle\FrameworkBundle;
use Symfony\Bundle\FrameworkBundle\Kernel\MicroKernelTrait;
use Symfony\Component\DependencyInjection\Loader\Configurator\ContainerConfigurator;
use Symfony\Component\HttpKernel\Kernel as BaseKernel;

use function Symfony\Component\DependencyInjection\Loader\Configurator\service;

final class Kernel extends BaseKernel
{
    use MicroKernelTrait;

    public function registerBundles(): iterable
    {
        return [new FrameworkBundle(), new RedriveBundle()];
    }

    public function getCacheDir(): string
    {
        return getenv('REPORT') . '.cache';
    }

    public function getLogDir(): string
    {
        return $this->getCacheDir();
    }

    private function configureContainer(ContainerConfigurator $container): void
    {
        $container->extension('framework', [
            'secret' => 'not needed here',
            'http_method_override' => false,
            'serializer' => ['enabled' => true],
            'messenger' => [
                'serializer' => ['default_serializer' => 'messenger.transport.symfony_serializer'],
                'failure_transport' => 'failed',
                'transports' => [
                    'async' => [
                        'dsn' => '%env(MESSENGER_DSN)%',
                        'retry_strategy' => ['max_retries' => 3, 'delay' => 10], // which nobody may follow beside Redrive
                        'options' => [
                            'exchange' => ['name' => 'async', 'type' => 'direct', 'default_publish_routing_key' => 'async'],
                            'queues' => [], // Redrive has made them
                            'confirm_timeout' => 10,
                        ],
                    ],
                    'failed' => 'in-memory://',
                ],
                'routing' => [Order::class => 'async', Page::class => 'async'],
                'buses' => ['messenger.bus.default' => ['middleware' => ['redrive.message_id', Observer::class]]],
            ],
        ]);
        $services = $container->services();
        $services->set(Observer::class)->tag('kernel.event_subscriber');
        $handler = static fn (string $method, string $from) => ['handles' => Order::class, 'method' => $method, 'from_transport' => $from];
        $services->set(Handlers::class)
            ->tag('messenger.message_handler', $handler('first', 'async'))
            ->tag('messenger.message_handler', $handler('second', 'async'))
            ->tag('messenger.message_handler', $handler('elsewhere', 'another'));
        $services->set(Pages::class)->tag('messenger.message_handler');
        $services->set(PublishCommand::class)->args([service('messenger.default_bus')])->tag('console.command', ['command' => 'shop:publish']);
    }
}
