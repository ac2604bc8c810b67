<?php

// Loads Symfony, from the folder of Composer that SYMFONY_VENDOR names or else from Debian's packages, and the package of this repository.

declare(strict_types=1);

$vendor = getenv('SYMFONY_VENDOR');
$autoloaders = false === $vendor || '' === $vendor
    ? array_map(
        static fn (string $part) => "/usr/share/php/Symfony/$part/autoload.php",
        ['Bundle/FrameworkBundle', 'Component/Console', 'Component/Messenger', 'Component/Messenger/Bridge/Amqp', 'Component/PropertyAccess', 'Component/Serializer'],
    )
    : ["$vendor/autoload.php"];
foreach ($autoloaders as $autoloader) {
    if (!is_file($autoloader)) {
        fwrite(STDERR, "$autoloader is missing: hack/languages.sh installs what the tests of clients need, or says how\n");
        exit(1);
    }
    require_once $autoloader;
}
spl_autoload_register(static function (string $class): void {
    foreach (['Shop\\' => __DIR__ . '/src/', 'Redrive\\Messenger\\' => __DIR__ . '/../../../handler/php/src/Messenger/'] as $prefix => $folder) {
        $file = $folder . strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require $file;
        }
    }
});
