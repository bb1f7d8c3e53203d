<?php
// A chapter of work by Pheanstalk. What it prints is the same on every server of the protocol.
//
// Usage: beanstalk.php HOST PORT

require '/usr/share/php/Pheanstalk/autoload.php';

use Pheanstalk\Pheanstalk;

$client = Pheanstalk::create($argv[1], (int) $argv[2]);
$client->useTube('php')->watch('php')->ignore('default');
$client->put('later', 9, 0, 100);
$client->put('first', 1, 0, 100);
echo $client->peekReady()->getData(), "\n";
$job = $client->reserveWithTimeout(1);
echo $job->getData(), ' ', $client->statsJob($job)['state'], "\n";
$client->release($job, 20);
$job = $client->reserve();
echo $job->getData(), "\n";
$client->touch($job);
$client->bury($job);
echo $client->peekBuried()->getData(), ' ', $client->kick(5), "\n";
for ($count = 0; $count < 2; $count++) {
    $job = $client->reserveWithTimeout(1);
    echo $job->getData(), "\n";
    $client->delete($job);
}
var_dump($client->reserveWithTimeout(0));
try {
    $client->delete($job);
} catch (Throwable $error) {
    echo get_class($error), "\n";
}
$delayed = $client->put('delayed', 5, 1000);
echo $client->peekDelayed()->getData(), ' ', $client->statsTube('php')['current-jobs-delayed'], "\n";
$client->kickJob($delayed);
echo $client->reserve()->getData(), "\n";
$client->delete($delayed);
$client->pauseTube('php', 0);
$client->resumeTube('php');
echo $client->listTubeUsed(), ' ', implode(',', $client->listTubesWatched()), "\n";
