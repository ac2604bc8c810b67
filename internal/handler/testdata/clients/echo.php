<?php

// Handles every message, and does nothing.

declare(strict_types=1);

require realpath($argv[1]) . '/redrive.php';

Redrive\serve(static function (Redrive\Message $message): void {
});
