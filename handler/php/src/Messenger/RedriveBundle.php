<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\DependencyInjection\Extension\ExtensionInterface;
use Symfony\Component\HttpKernel\Bundle\Bundle;

/** Has the command redrive:consume, and the middleware redrive.message_id for producers. */
final class RedriveBundle extends Bundle
{
    public function getContainerExtension(): ?ExtensionInterface
    {
        return new RedriveExtension();
    }
}
