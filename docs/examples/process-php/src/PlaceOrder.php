<?php

namespace App;

/** A message, as any Symfony application has it. */
final class PlaceOrder
{
    public function __construct(
        public readonly string $customer,
        public readonly bool $busy = false,
    ) {
    }
}
