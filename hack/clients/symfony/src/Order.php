<?php

namespace Shop;

/** What its handlers do with it is in the mode. */
final class Order
{
    public function __construct(public readonly string $name, public readonly string $mode)
    {
    }
}
