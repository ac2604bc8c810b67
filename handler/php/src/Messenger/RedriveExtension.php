<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\DependencyInjection\ContainerBuilder;
use Symfony\Component\DependencyInjection\ContainerInterface;
use Symfony\Component\DependencyInjection\Extension\Extension;
use Symfony\Component\DependencyInjection\Reference;
use Symfony\Component\Messenger\EventListener\ResetServicesListener;

final class RedriveExtension extends Extension
{
    public function getAlias(): string
    {
        return 'redrive';
    }

    public function load(array $configs, ContainerBuilder $container): void
    {
        $config = $this->processConfiguration(new RedriveConfiguration(), $configs);
        $container->register('redrive.message_id', MessageIdMiddleware::class);
        $container->register('redrive.reset_services', ResetServicesListener::class)->setArguments([new Reference('services_resetter')]);
        $container->register('redrive.consume_command', ConsumeCommand::class)
            ->setArguments([
                new Reference('messenger.routable_message_bus'),
                new Reference($config['serializer']),
                new Reference('event_dispatcher'),
                new Reference('redrive.reset_services'),
                new Reference('logger', ContainerInterface::NULL_ON_INVALID_REFERENCE),
            ])
            ->addTag('console.command', ['command' => ConsumeCommand::NAME])
            ->addTag('monolog.logger', ['channel' => 'messenger']);
    }
}
