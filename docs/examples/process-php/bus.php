<?php

// The application: in yours the kernel does this, and `$kernel->getContainer()->get('messenger.default_bus')` is the bus.

use App\PlaceOrder;
use App\PlaceOrderHandler;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;

if (is_file(__DIR__ . '/vendor/autoload.php')) {
    require __DIR__ . '/vendor/autoload.php';
} else { // Debian's packages php-symfony-messenger, php-symfony-serializer, php-symfony-property-access and php-xml
    foreach (['Messenger', 'Serializer', 'PropertyAccess'] as $component) {
        $autoload = "/usr/share/php/Symfony/Component/$component/autoload.php";
        if (!is_file($autoload)) {
            fwrite(STDERR, "Symfony's $component is missing: run `composer install` in " . __DIR__ . ", or install Debian's package\n");
            exit(1);
        }
        require $autoload;
    }
    require __DIR__ . '/src/PlaceOrder.php';
    require __DIR__ . '/src/PlaceOrderHandler.php';
}

return new MessageBus([
    new HandleMessageMiddleware(new HandlersLocator([PlaceOrder::class => [new PlaceOrderHandler()]])),
]);
