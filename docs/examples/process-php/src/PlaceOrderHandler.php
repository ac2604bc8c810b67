<?php

namespace App;

use Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException;

/** Its handler, which knows nothing of Redrive. */
final class PlaceOrderHandler
{
    private int $calls = 0;

    public function __invoke(PlaceOrder $order): void
    {
        if ($order->customer === '') {
            throw new UnrecoverableMessageHandlingException('an order needs a customer');
        }
        if ($order->busy && $this->calls++ % 2 === 0) {
            throw new \RuntimeException('the partner is busy');
        }
        echo "order of {$order->customer} stored\n";
    }
}
