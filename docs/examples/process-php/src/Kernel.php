<?php

namespace App;

use Redrive\Messenger\RedriveBundle;
use Symfony\Bundle\FrameworkBundle\FrameworkBundle;
use Symfony\Bundle\FrameworkBundle\Kernel\MicroKernelTrait;
use Symfony\Component\DependencyInjection\Loader\Configurator\ContainerConfigurator;
use Symfony\Component\HttpKernel\Kernel as BaseKernel;

/** The application: in yours these few lines of configuration are files in config/. */
final class Kernel extends BaseKernel
{
    use MicroKernelTrait;

    public function registerBundles(): iterable
    {
        return [new FrameworkBundle(), new RedriveBundle()];
    }

    public function getCacheDir(): string
    {
        return sys_get_temp_dir() . '/redrive-example-' . md5(__DIR__ . posix_geteuid()) . '/' . $this->environment;
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
                'transports' => ['async' => 'in-memory://'], // in yours that of the producers; nothing is published here
            ],
        ]);
        $container->services()->set(PlaceOrderHandler::class)->tag('messenger.message_handler');
    }
}
