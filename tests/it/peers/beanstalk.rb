# A chapter of work by Beaneater. What it prints is the same on every server of the protocol.
#
# Usage: beanstalk.rb HOST PORT

require 'beaneater'

client = Beaneater.new("#{ARGV[0]}:#{ARGV[1]}")
tube = client.tubes['ruby']
puts tube.put('later', pri: 9, ttr: 100)[:status]
tube.put('first', pri: 1, ttr: 100)
client.tubes.watch!('ruby')
puts tube.peek(:ready).body
job = client.tubes.reserve(1)
puts job.body, job.stats.state, job.stats.pri
job.release(pri: 20)
job = client.tubes.reserve(1)
puts job.body
job.touch
job.bury
puts tube.peek(:buried).body, tube.kick(5)[:status]
2.times do
  job = client.tubes.reserve(1)
  puts job.body
  job.delete
end
begin
  client.tubes.reserve(0)
rescue Beaneater::TimedOutError
  puts 'timed out'
end
begin
  job.delete
rescue Beaneater::NotFoundError
  puts 'not found'
end
tube.put('delayed', delay: 1000)
puts tube.peek(:delayed).body, tube.stats.current_jobs_delayed, tube.kick(1)[:id]
tube.pause(0)
tube.clear
puts tube.stats.current_jobs_ready, client.tubes.used.name, client.tubes.watched.map(&:name).sort
client.close
