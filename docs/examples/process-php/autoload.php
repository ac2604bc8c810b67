<?php

// Loads Symfony and the package redrive/handler: from Composer, or else from Debian's packages and this repository.

if (is_file(__DIR__ . '/vendor/autoload.php')) {
    require __DIR__ . '/vendor/autoload.php';

    return;
}
foreach (['Bundle/FrameworkBundle', 'Component/Console', 'Component/Messenger', 'Component/PropertyAccess', 'Component/Serializer'] as $part) {
    if (!is_file("/usr/share/php/Symfony/$part/autoload.php")) {
        fwrite(STDERR, "Symfony's $part is missing: run `composer install` in " . __DIR__ . ", or install Debian's package\n");
        exit(1);
    }
    require_once "/usr/share/php/Symfony/$part/autoload.php";
}
spl_autoload_register(static function (string $class): void {
    $folders = ['App\\' => __DIR__ . '/src/', 'Redrive\\Messenger\\' => __DIR__ . '/../../../handler/php/src/Messenger/'];
    foreach ($folders as $prefix => $folder) {
        $file = $folder . strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require $file;
        }
    }
});
